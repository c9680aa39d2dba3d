"""What can go wrong, as classes: everything that ropeway raises on its own account."""


class RopewayError(Exception):
    """The base of all errors that ropeway defines."""


class Timeout(RopewayError, TimeoutError):
    """Raised when the time was up before there was a slot to acquire or take."""


class Closed(RopewayError):
    """Raised by a pool that was closed and has nothing left, or that was aborted."""


class QueueClosed(Closed, ValueError):
    """Raised by a closed queue: `Closed`, and what `multiprocessing.Queue` raises there."""


class InUse(RopewayError, BufferError):
    """Raised by `release` and `publish` while views of the slot live; nothing has changed.

    Also raised by a wait that only slots held by the waiting thread itself could end.
    """


class OutOfMemory(RopewayError, MemoryError):
    """Raised when memory isn't there: how much was asked for, and how much there is."""


class PeerDied(Closed):
    """Raised when the process that something was awaited from has died, and nothing is left."""


class WorkerError(RopewayError):
    """Raised by a loader when one of its workers failed; carries the worker's traceback as text."""


class Incompatible(RopewayError, ValueError):
    """Raised when what a handle or a name leads to isn't what this version of ropeway can use."""


class Gone(RopewayError, LookupError):
    """Raised when a handle comes too late: what it points to exists no more."""


class Invalid(RopewayError, ValueError):
    """Raised for an argument that can't be, or a lease that has ended; says what was expected."""


class NoSuch(RopewayError, KeyError):
    """Raised for an array or a stage that doesn't exist; names those that do."""

    __str__ = Exception.__str__
