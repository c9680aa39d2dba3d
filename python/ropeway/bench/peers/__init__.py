"""The contestants."""

from .copies import FasterFifoOfArrays, QueueOfArrays, TorchFresh, TorchShared
from .iceoryx import Iceoryx2Events, Iceoryx2Polling
from .peer import ContentsError, Peer, check
from .ropeway_pool import Ropeway, RopewayHandOff, RopewaySleeping
from .tokens import (
    RawArrayQueues,
    SharedMemoryFasterFifo,
    SharedMemoryPipe,
    SharedMemorySemaphore,
    SharedMemorySimpleQueues,
)

PEERS: dict[str, type[Peer]] = {
    peer.name: peer
    for peer in (
        Ropeway,
        RopewaySleeping,
        RopewayHandOff,
        QueueOfArrays,
        RawArrayQueues,
        SharedMemorySimpleQueues,
        SharedMemoryPipe,
        SharedMemorySemaphore,
        FasterFifoOfArrays,
        SharedMemoryFasterFifo,
        Iceoryx2Polling,
        Iceoryx2Events,
        TorchFresh,
        TorchShared,
    )
}

__all__ = ["PEERS", "ContentsError", "Peer", "Ropeway", "RopewaySleeping", "check"]
