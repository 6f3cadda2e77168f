"""A client of a CDFL server: joins, trains on its own data, uploads, receives its personal model."""

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import httpx
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cdfl import wire
from cdfl.client.data import Data, batches_of, passes
from cdfl.client.errors import ClientError, DivergedError, ServerAwayError, StateError
from cdfl.client.privacy import Privacy
from cdfl.client.state import Blob, Folder, Pending, State, Volatile
from cdfl.client.transport import Answer, Link, Retry, Verify
from cdfl.client.watch import Seen, Watcher
from cdfl.core import Layout, Loss, Settings, client_update, load
from cdfl.core.batches import described
from cdfl.policy import Memory, Policy

logger = logging.getLogger("cdfl.client")

Outcome = Literal["applied", "deprecated", "rejected", "refreshed", "joined"]
# The server will never take these bytes, however often they come: bad request, too large, wrong type, unfit.
NEVER = (400, 411, 413, 415, 422)


@dataclass(frozen=True)
class Reply:
    """What the server said; the model it sent is in the client's model by now."""

    epoch: int  # the base epoch of the next upload
    mixture: tuple[float, ...]  # what the server takes the client's data to be made of
    outcome: Outcome  # refreshed: the upload was not answered, `detail` says why, and the model was fetched instead
    rates: tuple[float, ...] = ()  # how far each cluster moved
    staleness: int | None = None
    detail: str = ""  # why it was rejected or refreshed, and what to do


class Client:
    """One client of one server. `model` is trained from, and filled with, what the server sends.

    Loss, optimiser, learning rate and the like are the client's own: keywords are `Settings`. With a `state_dir` it
    survives its own restart. It belongs to one thread at a time. `cdfl.client.errors` says what can go wrong.
    """

    def __init__(
        self,
        url: str,
        model: nn.Module,
        client_id: str,
        token: str | None = None,
        *,
        loss: Loss = cross_entropy,
        settings: Settings | None = None,
        state_dir: str | Path | None = None,
        dtype: wire.DType = "float32",
        reply_dtype: wire.DType = "float32",
        compress: bool = False,
        privacy: Privacy | None = None,
        verify: Verify = True,
        timeout: float = 60.0,
        retry: Retry = Retry(),  # noqa: B008  frozen
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        **changes: Any,
    ) -> None:
        for name, given, is_fine, expected in (
            ("model", model, isinstance(model, nn.Module), "a torch.nn.Module"),
            ("client_id", client_id, isinstance(client_id, str), "its name, a str"),
            ("loss", loss, callable(loss), "a function of (outputs, targets)"),
            ("privacy", privacy, isinstance(privacy, Privacy | None), "cdfl.client.Privacy(clip, noise), or None"),
        ):
            if not is_fine:
                raise ValueError(f"{name} is {described(given)}; expected {expected}")
        self.model, self.loss, self.privacy = model, loss, privacy
        self.settings = (settings or Settings()).replace(**changes)
        self.layout = Layout.of(model)
        self.clock, self.retry = clock, retry
        self._is_closed = False
        if dtype not in wire.DTYPES:
            raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(wire.DTYPES)}")
        self._dtype: wire.DType = dtype
        self._link = Link(
            url,
            client_id,
            token,
            self.layout,
            reply_dtype=reply_dtype,
            compress=compress,
            verify=verify,
            timeout=timeout,
            retry=retry,
            transport=transport,
            sleep=sleep,
        )
        self._store = Volatile() if state_dir is None else Folder(Path(state_dir))
        try:
            self._state = self._store.load(client_id)
            self._check_state()
        except StateError:
            self.close()
            raise

    # -- what it knows

    @property
    def client_id(self) -> str:
        """Its name."""
        return self._state.client_id

    @property
    def epoch(self) -> int:
        """The epoch of the last reply."""
        return self._state.epoch

    @property
    def mixture(self) -> tuple[float, ...]:
        """The mixture in the last reply; empty before the first."""
        return self._state.mixture

    @property
    def joined(self) -> bool:
        """Has it ever received a model?"""
        return self._state.personal_model is not None

    @property
    def pending(self) -> bool:
        """Is there an upload that the server has not answered?"""
        return self._state.pending is not None

    @property
    def uploads(self) -> int:
        """How many models it has made for upload, those among them that were never answered too."""
        return self._state.uploads

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return next(self.model.parameters()).device

    def start_model(self) -> Tensor:
        """The model (P,) that a training goes on from: what was trained and waits, else what was received."""
        pending = self._state.pending
        if pending is not None:
            return wire.decode_model(pending.local_model.data, self.layout)
        return self._personal_model()

    # -- what it does

    def join(self) -> Reply | None:
        """Fetch a model: a newcomer's, or the client's own over today's clusters. An upload that waits goes first.

        None: the server is away, and the model is the one that the client had when it was last used.
        """
        try:
            return self.flush() or self._fetch("joined")
        except ServerAwayError as away:
            if not self.joined:
                raise
            load(self.model, self.start_model())
            logger.warning("%s; going on with the model of epoch %d", away, self.epoch)
            return None

    def update(self, data: Data) -> Reply | None:
        """Train on `data` from the model last received, upload, and receive the personal model.

        `data` is a DataLoader (any iterable of (inputs, targets) batches; `local_epochs` passes are made), a Dataset
        or one batch. None: the server is away. The model is then the one just trained; it is kept, and goes out with
        the next `update`, `flush` or `join`. If another training comes before that, it goes on from there and its
        upload takes the place of the one that waits, which is never sent again.
        """
        self.prepare()
        return self.upload(self.train(data))

    def prepare(self) -> None:
        """Have a model to train from, the newest that one attempt can get."""
        if not self.joined:
            self.join()
        try:
            self.flush(attempts=1)
        except ServerAwayError as away:
            logger.info("%s; the upload goes on waiting", away)

    def train(self, data: Data) -> Tensor:
        """Train on `data` (Client() of Algorithm 1) and return the local model (P,); nothing else changes."""
        self._check_open()
        training = self.settings.training
        batches = passes(batches_of(data, training.batch_size), training.local_epochs, self.device)
        return client_update(self.model, self.start_model(), batches, self.loss, training)

    def upload(self, local_model: Tensor) -> Reply | None:
        """Upload a model (P,) that was trained from the one last received, however that was done; else as `update`."""
        if not isinstance(local_model, Tensor):
            raise ValueError(
                f"the upload is {described(local_model)}; expected a tensor (P,), as `cdfl.core.flatten` gives"
            )
        self.layout.check(local_model)
        if not bool(torch.isfinite(local_model).all()):
            raise DivergedError("the training gave NaN or infinity: nothing was uploaded; use a smaller learning_rate")
        kept = self._blob(local_model, "float32")
        pending = Pending(secrets.token_hex(16), self.epoch, self._shared(local_model, kept), kept)
        self._keep(replace(self._state, pending=pending, uploads=self.uploads + 1))  # on disk before it is sent
        load(self.model, local_model)
        try:
            return self.flush()
        except ServerAwayError as away:
            logger.warning("%s; the upload is kept and goes out later", away)
            return None

    def flush(self, attempts: int | None = None) -> Reply | None:
        """Send the upload that waits, if there is one; None if there is none."""
        self._check_open()
        pending = self._state.pending
        if pending is None:
            return None
        try:
            answer = self._link.update(pending.upload.data, pending.base_epoch, pending.key, attempts)
        except (wire.ConflictError, wire.GoneError) as error:
            logger.warning("the upload was not answered: %s Fetching the model instead.", error.detail)
            return self._fetch("refreshed", error.detail)
        except wire.WireError as error:
            if error.status in NEVER:
                self._keep(replace(self._state, pending=None))
            raise
        if answer.head.detail:
            logger.warning("%s", answer.head.detail)
        return self._receive(answer, answer.head.outcome or "applied", answer.head.detail)

    def watch(self, stream: Iterable[Data], policy: Policy, recent: int = 1) -> Iterator[Seen]:
        """Follow a stream of fresh data (each a batch, a loader or a small dataset); the policy decides when to upload.

        Trains on the last `recent` of them, those from before the last upload not among them. Yields what was seen and
        done at each; a training that diverges, or a server that is away, is told and ends nothing.
        """
        watcher = Watcher(self, policy, recent)
        for data in stream:
            yield watcher.look(data)

    def remember(self, policy: str, memory: Memory, *, now: bool = True) -> None:
        """Keep what a policy remembers; `now=False`: together with the upload that is about to be made."""
        state = replace(self._state, policy=policy, memory=memory)
        if now:
            self._keep(state)
        else:
            self._state = state

    def recall(self, policy: str) -> Memory:
        """What a policy remembered when the client was last used."""
        return self._state.memory if self._state.policy == policy else ()

    def close(self) -> None:
        """Let go of connections and of the state folder; the client is of no use afterwards."""
        self._is_closed = True
        self._link.close()
        self._store.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- how

    def _fetch(self, outcome: Outcome, detail: str = "") -> Reply:
        return self._receive(self._link.model(), outcome, detail)

    def _receive(self, answer: Answer, outcome: Outcome, detail: str = "") -> Reply:
        head = answer.head
        self._keep(
            replace(
                self._state,
                epoch=head.epoch,
                mixture=head.mixture,
                personal_model=Blob(answer.body),
                pending=None,
            )
        )
        load(self.model, answer.personal_model)
        return Reply(head.epoch, head.mixture, outcome, head.rates or (), head.staleness, detail)

    def _keep(self, state: State) -> None:
        self._check_open()
        self._store.save(state)
        self._state = state

    def _check_open(self) -> None:
        """The folder may be another client's by now."""
        if self._is_closed:
            raise ClientError(f"client {self.client_id!r} is closed; make another one, from the same state_dir if any")

    def _personal_model(self) -> Tensor:
        received = self._state.personal_model
        if received is None:
            raise ClientError("there is no model to train from yet; call join() first")
        return wire.decode_model(received.data, self.layout)

    def _shared(self, local_model: Tensor, kept: Blob) -> Blob:
        """What goes out: the local model as it is kept, unless there are reasons to change it."""
        if self.privacy is not None:
            local_model = self.privacy.apply(local_model, self._personal_model(), self.layout.num_parameters)
        elif self._dtype == "float32":
            return kept
        return self._blob(local_model, self._dtype)

    def _blob(self, vector: Tensor, dtype: wire.DType) -> Blob:
        return Blob(wire.encode_model(vector.float(), self.layout, dtype))

    def _check_state(self) -> None:
        try:
            for blob in self._state.blobs:
                wire.decode_model(blob.data, self.layout)
        except wire.WireError as error:
            raise StateError(f"the state of {self.client_id!r} is of another model: {error.detail}") from None
