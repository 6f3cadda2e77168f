import pytest

from cdfl.client import Client

from .toy import ToyServer, make_model


@pytest.fixture
def server():
    return ToyServer()


@pytest.fixture
def make_client(server):
    """Return a function that makes clients of the toy server; they do not wait between attempts."""
    made = []

    def make(transport=None, client_id="car-7", model=None, **settings):
        settings = {"learning_rate": 0.01, "batch_size": 8, "sleep": lambda seconds: None} | settings
        client = Client(
            "http://server.test",
            model=make_model() if model is None else model,
            client_id=client_id,
            transport=transport or server.transport,
            **settings,
        )
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()
