"""A client of a CDFL server: joins, trains on local data, uploads, receives its personal model."""

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
from cdfl.client.batches import Data, batches_of, mean_loss, nonempty, passes
from cdfl.client.connection import Answer, Connection, Retry, Verify
from cdfl.client.errors import ClientError, DivergedError, ServerAwayError, StateError
from cdfl.client.privacy import Privacy
from cdfl.client.saved_state import Blob, PendingUpload, SavedState, StateFolder
from cdfl.client.watcher import Turn, Watcher
from cdfl.core import Layout, Loss, Settings, client_update, load
from cdfl.core.batches import described
from cdfl.policy import Memory, Policy

logger = logging.getLogger("cdfl.client")

Outcome = Literal["applied", "deprecated", "rejected", "refreshed", "joined"]
FINAL = (400, 411, 413, 415, 422)  # a cdfl server will never accept these bytes; an upload so answered is dropped


@dataclass(frozen=True)
class Reply:
    """The server's answer. The client's model already holds the model that came with it."""

    epoch: int  # the base epoch of the next upload
    mixture: tuple[float, ...]  # the server's estimate: the share of each cluster in the client's data
    outcome: Outcome  # refreshed: the server could not answer the upload, so the model was fetched instead
    rates: tuple[float, ...] = ()  # how far each cluster moved
    staleness: int | None = None
    detail: str = ""  # why the upload was rejected or the model refreshed, and what to do


class Client:
    """One client of one server. A client is not thread-safe. `cdfl.client.errors` lists the errors.

    Args:
        url: Address of the server.
        model: The network. Models that the server sends are loaded into it.
        client_id: The client's name: letters, digits and `. _ -`.
        token: The client's token; None for an open server.
        loss: A function of (outputs, targets) to train with.
        settings: Settings of the training.
        state_dir: Folder for the client's state. With one, the client survives a restart.
        dtype: Number format of uploads.
        reply_dtype: Number format of replies.
        compress: Compress uploads and replies with zstd.
        privacy: Clip uploads and add noise.
        report: Tell the server with each upload what the last reply did to the loss on the client's own data.
        verify: False, or the PEM file or SSL context of a self-signed server.
        timeout: Seconds to wait for the network.
        retry: How often to repeat a request, and after what waits.
        transport: Replaces the network, for tests.
        clock: Returns the time for policies, in seconds since 1970.
        sleep: Waits between attempts.
        **changes: Single settings by name, such as `learning_rate`.

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
        report: bool = False,
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
            ("client_id", client_id, isinstance(client_id, str), "a name, a str"),
            ("loss", loss, callable(loss), "a function of (outputs, targets)"),
            ("privacy", privacy, isinstance(privacy, Privacy | None), "cdfl.client.Privacy(clip, noise), or None"),
        ):
            if not is_fine:
                raise ValueError(f"{name} is {described(given)}; expected {expected}")
        self.model, self.loss, self.privacy = model, loss, privacy
        self.settings = (settings or Settings()).replace(**changes)
        self.layout = Layout.of(model)
        self.clock, self.retry = clock, retry
        self.report = report
        self._last_losses: tuple[float, float] | None = None  # with the last reply: before and after
        self._is_closed = False
        self._is_away = False  # the server, as far as was logged
        if dtype not in wire.DTYPES:
            raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(wire.DTYPES)}")
        self._dtype: wire.DType = dtype
        self._connection = Connection(
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
        self._folder = None if state_dir is None else StateFolder(Path(state_dir))
        try:
            self._state = SavedState(client_id) if self._folder is None else self._folder.load(client_id)
            self._check_state()
        except StateError:
            self.close()
            raise

    @property
    def client_id(self) -> str:
        """The client's name."""
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
        """Whether the client has ever received a model."""
        return self._state.personal_model is not None

    @property
    def pending(self) -> bool:
        """Whether an upload waits for the server's answer."""
        return self._state.pending is not None

    @property
    def uploads(self) -> int:
        """The number of models made for upload, including those that were never answered."""
        return self._state.uploads

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    def start_model(self) -> Tensor:
        """Return the model (P,) that training starts from: the one that waits for upload, or the one last received."""
        pending = self._state.pending
        if pending is not None:
            return wire.decode_model(pending.local_model.data, self.layout)
        return self._personal_model()

    def join(self) -> Reply | None:
        """Send a waiting upload, or else fetch a model: the average for a newcomer, otherwise the personal one.

        Returns None if the server is away. The client then continues with the model of its last use; without one,
        `ServerAwayError` is raised.
        """
        try:
            return self.flush() or self._receive(self._connection.fetch_model(), "joined")
        except ServerAwayError as away:
            if not self.joined:
                raise
            load(self.model, self.start_model())
            self._log_away("%s; continuing with the model of epoch %d", away, self.epoch)
            return None

    def update(self, data: Data) -> Reply | None:
        """Train on `data` from the model last received, upload, and receive the personal model.

        `data` is a DataLoader or another iterable of (inputs, targets) batches, a Dataset, or one batch. It is passed
        over `local_epochs` times. Returns None if the server is away. The trained model is then kept and sent by the
        next `update`, `flush` or `join`. If `update` trains again before the upload is sent, training continues from
        the kept model, and the new upload replaces the waiting one.
        """
        self.prepare()
        if not self.report:
            return self.upload(self.train(data))
        batches = batches_of(data, self.settings.training.batch_size)
        before = self._loss_of(self.start_model(), batches)
        reply = self.upload(self.train(batches))
        if reply is not None and before is not None:
            after = self._loss_of(self._personal_model(), batches)
            self._last_losses = None if after is None else (before, after)
        return reply

    def prepare(self) -> None:
        """Join if that has not happened, and try once to send a waiting upload."""
        if not self.joined:
            self.join()
        try:
            self.flush(attempts=1)
        except ServerAwayError as away:
            self._log_away("%s; the upload keeps waiting", away)

    def train(self, data: Data) -> Tensor:
        """Train on `data` (Client() of Algorithm 1) and return the local model (P,). The client is not changed."""
        self._check_open()
        training = self.settings.training
        batches = passes(batches_of(data, training.batch_size), training.local_epochs, self.device)
        return client_update(self.model, self.start_model(), batches, self.loss, training)

    def upload(self, local_model: Tensor) -> Reply | None:
        """Upload a model (P,) that other code trained from `start_model()`; return as `update` does."""
        if not isinstance(local_model, Tensor):
            raise ValueError(
                f"the upload is {described(local_model)}; expected a tensor (P,), as `cdfl.core.flatten` gives"
            )
        self.layout.check(local_model)
        if not bool(torch.isfinite(local_model).all()):
            raise DivergedError("training gave NaN or infinity; nothing was uploaded; use a smaller learning_rate")
        kept = self._blob(local_model, "float32")
        pending = PendingUpload(secrets.token_hex(16), self.epoch, self._upload_blob(local_model, kept), kept)
        self._save(replace(self._state, pending=pending, uploads=self.uploads + 1))  # on disk before it is sent
        load(self.model, local_model)
        try:
            return self.flush()
        except ServerAwayError as away:
            self._log_away("%s; the upload is kept and sent later", away)
            return None

    def flush(self, attempts: int | None = None) -> Reply | None:
        """Send the waiting upload; return None if there is none."""
        self._check_open()
        pending = self._state.pending
        if pending is None:
            return None
        try:
            upload, said = pending.upload.data, self._last_losses
            answer = self._connection.upload(upload, pending.base_epoch, pending.key, attempts, said)
        except (wire.ConflictError, wire.GoneError) as error:
            logger.warning("the upload was not answered: %s Fetching the model instead.", error.detail)
            return self._receive(self._connection.fetch_model(), "refreshed", error.detail)
        except wire.WireError as error:
            if error.status in FINAL and error.is_answer:
                self._save(replace(self._state, pending=None))
            raise
        if answer.head.detail:
            logger.warning("%s", answer.head.detail)
        return self._receive(answer, answer.head.outcome or "applied", answer.head.detail)

    def watch(self, stream: Iterable[Data], policy: Policy, recent: int = 1) -> Iterator[Turn]:
        """Follow a stream of fresh data (batches, loaders or small datasets); the policy decides when to upload.

        Trains on the data of the last `recent` turns since the last upload. Yields a `Turn` each time data arrive.
        Training that diverges and a server that is away do not end the stream: the `Turn` reports them.
        """
        watcher = Watcher(self, policy, recent)
        for data in stream:
            yield watcher.turn(data)

    def remember(self, policy: str, memory: Memory, *, now: bool = True) -> None:
        """Save a policy's memory; with `now=False`, together with the next upload."""
        state = replace(self._state, policy=policy, memory=memory)
        if now:
            self._save(state)
        else:
            self._state = state

    def recall(self, policy: str) -> Memory:
        """Return the saved memory of a policy; empty if another policy saved last."""
        return self._state.memory if self._state.policy == policy else ()

    def close(self) -> None:
        """Close the connections and release the state folder. A closed client cannot be used again."""
        self._is_closed = True
        self._connection.close()
        if self._folder is not None:
            self._folder.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _log_away(self, message: str, *values: object) -> None:
        """Log that the server is away, once until it is back."""
        if not self._is_away:
            logger.warning(message, *values)
        self._is_away = True

    def _receive(self, answer: Answer, outcome: Outcome, detail: str = "") -> Reply:
        head = answer.head
        if self._is_away:
            logger.warning("the server is back")
        self._is_away, self._last_losses = False, None
        self._save(
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

    def _save(self, state: SavedState) -> None:
        self._check_open()
        if self._folder is not None:
            self._folder.save(state)
        self._state = state

    def _loss_of(self, model: Tensor, batches: Iterable[Any]) -> float | None:
        """Return the loss of a model (P,) on data; None if it is not finite or there are no data."""
        load(self.model, model)
        try:
            return mean_loss(self.model, nonempty(batches), self.loss, self.device)
        except (DivergedError, ZeroDivisionError):
            return None

    def _check_open(self) -> None:
        if self._is_closed:  # another client may use the folder by now
            raise ClientError(f"client {self.client_id!r} is closed; make another one, with the same state_dir if any")

    def _personal_model(self) -> Tensor:
        received = self._state.personal_model
        if received is None:
            raise ClientError("there is no model to train from yet; call join() first")
        return wire.decode_model(received.data, self.layout)

    def _upload_blob(self, local_model: Tensor, kept: Blob) -> Blob:
        """Return the bytes to send: the local model with noise or in another dtype, or else the kept bytes."""
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
            raise StateError(
                f"the state of {self.client_id!r} belongs to another model: {error.detail}; name another state_dir"
            ) from None
