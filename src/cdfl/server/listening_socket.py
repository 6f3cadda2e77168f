"""Listen on an address. Imports nothing heavy: a server listens before it has loaded everything else."""

import socket

BACKLOG = 2048  # connections that wait to be accepted


def take_port(host: str, port: int) -> socket.socket:
    """Listen on the address of a server. Connections wait until the server runs."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not the name of a host"
        raise OSError(f"cannot listen on {host!r}: {why}; give --host an address of this machine") from None
    taken = socket.socket(family, kind, protocol)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
        taken.listen(BACKLOG)
    except OSError as error:
        taken.close()
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror}; name another --port or --host") from None
    return taken
