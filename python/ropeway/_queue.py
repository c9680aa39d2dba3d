"""A queue with the interface of `multiprocessing.Queue`, whose arrays aren't copied on the way."""

import os
import queue
from typing import TYPE_CHECKING, Any, SupportsIndex

from ropeway import _core, _layout, _message
from ropeway._errors import Closed, PeerDied, QueueClosed, Timeout

if TYPE_CHECKING:
    from ropeway import _status

_FIRST_SLOTS = 8
_MOST_SLOTS = 65_536


class Queue:
    """Hands any picklable objects from process to process, first in, first out.

    Arrays inside an object travel in a slot of shared memory: `put` copies them into it, once,
    and `get` gives views of it. Arrays that overlap stay views of one memory. A shared `Array`
    isn't copied at all. There is no feeder thread: when `put` returns the message is there, and
    stays there when the process ends. What can't be pickled raises in `put`.

    A queue pickles as a handle, by any route, also between unrelated processes of one user.
    """

    def __init__(self, maxsize: SupportsIndex = 0) -> None:
        """Makes a queue in which at most `maxsize` messages wait, any number if it is 0 or less.

        Messages that were taken don't count, even if their arrays live on. At most 65,536
        messages can exist at a time.
        """
        self._maxsize = min(max(0, _layout.count("maxsize", maxsize)), _MOST_SLOTS)
        core = _core.create(
            _FIRST_SLOTS, None, ("fill", "use"), None, None, _MOST_SLOTS, self._maxsize or None
        )
        self._pool: _core.Pool | None = _core.Pool(core)
        self._creator = os.getpid()

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Puts an object on the queue, waiting for room if `block`.

        Raises `queue.Full` if there is no room (in time), `Closed` (a ValueError too) on a closed
        queue, `OutOfMemory` if there is no memory for it, and whatever pickling it raises.
        """
        pool = self._opened()
        message = _message.Message(obj)
        sent = False
        try:
            with self._acquire(pool, message.nbytes, block, timeout) as lease:
                try:
                    message.write(lease)
                    number = lease.number = lease.generation << 16 | lease.index
                    lease.publish()
                finally:
                    sent = lease.ended  # also if a signal's handler raises behind `publish`
            if pool.closed and self._takes_back(pool, number):
                sent = False
                raise QueueClosed("this queue was closed while a message was put on it")
        except BaseException:
            if not sent:
                message.withdraw()
            raise

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Takes the oldest object off the queue, waiting for one if `block`.

        Its arrays are views of shared memory that is used again once the last of them is gone.
        Raises `queue.Empty` if there is none (in time), `Closed` (a ValueError too) if there
        won't be any, and whatever unpickling raises: the message counts as taken then.
        """
        pool = self._opened()
        try:
            lease = pool.take(write=True, timeout=timeout if block else 0)
        except Timeout:
            raise queue.Empty from None
        except PeerDied:
            raise
        except Closed as error:
            raise QueueClosed(str(error)) from None
        with lease:
            return _message.read(lease)

    def put_nowait(self, obj: Any) -> None:
        """Puts an object on the queue if there is room now, else raises `queue.Full`."""
        self.put(obj, block=False)

    def get_nowait(self) -> Any:
        """Takes an object off the queue if there is one now, else raises `queue.Empty`."""
        return self.get(block=False)

    def qsize(self) -> int:
        """Counts the messages that wait."""
        return self._opened().waiting()

    def empty(self) -> bool:
        """Says whether no message waits."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Says whether `put` would have to wait."""
        return self._opened().full()

    def status(self) -> "_status.PoolStatus":
        """Says what the queue's slots look like now."""
        from ropeway import _status

        return _status.read(self._opened().snapshot())

    def close(self) -> None:
        """Ends this process's use of the queue; in the process that made it, the queue itself.

        The maker's `close` drops what is unread, and every `put` and `get` of any process,
        waiting ones too, raises `Closed`.
        """
        pool, self._pool = self._pool, None
        if pool is not None and self._creator == os.getpid():
            pool.close()
            _drain(pool)

    def join_thread(self) -> None:
        """Does nothing: there is no thread. Only here as `multiprocessing.Queue` has it."""

    def cancel_join_thread(self) -> None:
        """Does nothing: there is no thread. Only here as `multiprocessing.Queue` has it."""

    def __reduce__(self) -> Any:
        return _attach, (self._opened().handle, self._maxsize)

    def __repr__(self) -> str:
        if self._pool is None:
            return "<ropeway.Queue, closed>"
        return f"<ropeway.Queue, maxsize {self._maxsize}, {self.qsize()} waiting>"

    def _opened(self) -> "_core.Pool":
        if self._pool is None:
            raise QueueClosed("this queue was closed in this process")
        return self._pool

    def _takes_back(self, pool: "_core.Pool", number: int) -> bool:
        """Undoes a `put` during which the queue was closed, unless somebody has the message.

        Whoever closes drops what is there, and may have looked before this message was.
        """
        try:
            pool.take(write=True, timeout=0, number=number).release()
        except (Timeout, Closed):
            return False
        return True

    def _acquire(
        self, pool: "_core.Pool", nbytes: int, block: bool, timeout: float | None
    ) -> "_core.WriteLease":
        try:
            return pool.acquire(timeout if block else 0, nbytes)
        except Timeout:
            raise queue.Full from None
        except PeerDied:
            raise
        except Closed as error:
            raise QueueClosed(str(error)) from None


def _attach(handle: bytes, maxsize: int) -> Queue:
    self = Queue.__new__(Queue)
    self._maxsize = maxsize
    self._pool = _core.Pool(_core.attach(handle))
    self._creator = 0
    return self


def _drain(pool: "_core.Pool") -> None:
    """Takes what waits and drops it."""
    try:
        while True:
            with pool.take(write=True, timeout=0) as lease:
                _message.discard(lease)
    except (Timeout, Closed):
        return
