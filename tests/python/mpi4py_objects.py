"""Objects of Python, exchanged by all ranks and compared. The first rank prints one line."""

from mpi4py import MPI


def bytes_from(rank, to):
    return bytes((rank * 31 + to * 17 + at) % 251 for at in range(100_000))


world = MPI.COMM_WORLD
ranks, rank = world.size, world.rank
sent = [{"from": rank, "to": to, "bytes": bytes_from(rank, to)} for to in range(ranks)]
for source, message in enumerate(world.alltoall(sent)):
    assert message == {"from": source, "to": rank, "bytes": bytes_from(source, rank)}
hosts = set(world.allgather(MPI.Get_processor_name()))
if rank == 0:
    print(f"{ranks} ranks on {len(hosts)} hosts: all objects are the same")
