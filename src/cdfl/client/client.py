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
from cdfl.argument_checks import check_number
from cdfl.client.batches import Data, batches_of, mean_loss, nonempty, passes, to_device
from cdfl.client.connection import Answer, Connection, Retry, Verify
from cdfl.client.data_stream import StreamFollower, Turn
from cdfl.client.errors import ClientError, DivergedError, ServerAwayError, StateError
from cdfl.client.experts import ClientRouter, Experts, Seen, moved, noisy
from cdfl.client.privacy import Privacy
from cdfl.client.saved_state import Blob, PendingUpload, SavedState, StateFolder
from cdfl.core import Layout, Loss, Settings, client_update, load
from cdfl.core.batches import described
from cdfl.upload_policies import Memory, Policy

logger = logging.getLogger("cdfl.client")

Outcome = Literal["applied", "deprecated", "rejected", "refreshed", "joined"]
MANY_STRANGE = 0.3  # share of inputs that fit no cluster; a warning says so if there are more
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
        send_mixture: Send the client's own estimate of its mixture with each upload, where the server takes it. It is
            better than the server's. Without it, what the router tells about the data stays on the device.
        mixture_noise: Standard deviation of the noise that is added to the shares that are sent.
        one_model: Ask for one model, also where the server's replies are experts.
        router: The router's network, where the problem brings its own.
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
        send_mixture: bool = False,
        mixture_noise: float = 0.0,
        one_model: bool = False,
        router: nn.Module | None = None,
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
            ("router", router, isinstance(router, nn.Module | None), "a torch.nn.Module, or None"),
        ):
            if not is_fine:
                raise ValueError(f"{name} is {described(given)}; expected {expected}")
        self.model, self.loss, self.privacy = model, loss, privacy
        self.settings = (settings or Settings()).replace(**changes)
        self.layout = Layout.of(model)
        self.clock, self.retry = clock, retry
        self.report = report
        check_number("mixture_noise", mixture_noise, 0, finite=True)
        self.send_mixture, self.mixture_noise = send_mixture, mixture_noise
        self._own_module = router
        self._router: ClientRouter | None = None
        self._experts: Experts | None = None
        self._base: tuple[float, ...] = ()  # the mixture that the next training starts from; (): that of the reply
        self._has_said: set[str] = set()  # what was logged already
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
        self.one_model = one_model
        self._folder = None if state_dir is None else StateFolder(Path(state_dir))
        try:
            self._state = SavedState(client_id) if self._folder is None else self._folder.load(client_id)
            self._take_state()
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
    def own_mixture(self) -> tuple[float, ...]:
        """The client's own estimate, by the router: of what it saw last; the mixture in the reply before that."""
        return self._state.own_mixture or self._state.mixture

    @property
    def mixture_moved(self) -> float:
        """How far its own mixture is from that at the last upload: the share of data that changed clusters, 0 to 1."""
        before = self._state.uploaded_mixture or self._state.mixture
        return moved(self.own_mixture, before)

    @property
    def has_experts(self) -> bool:
        """Whether it predicts with cluster models behind a router."""
        return self._experts is not None and self._router is not None

    @property
    def one_model(self) -> bool:
        """Whether it asks for one model, also where replies are experts."""
        return self._connection.one_model

    @one_model.setter
    def one_model(self, value: bool) -> None:
        self._connection.one_model = value

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
        """Return the model (P,) that training starts from: the one that waits for upload, or the one last received.

        Experts are mixed: by the client's own mixture if it sends that, or else by the server's.
        """
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
        batches = batches_of(data, self.settings.training.batch_size)
        self.follow(batches)
        if not self.report:
            return self.upload(self.train(batches))
        before = self._loss_of(self.start_model(), batches)
        reply = self.upload(self.train(batches))
        if reply is not None and before is not None:
            after = self._loss_of(self._personal_model(), batches)
            self._last_losses = None if after is None else (before, after)
        return reply

    def predict(self, inputs: Tensor, *, one_expert: bool = False) -> Tensor:
        """Return the outputs for some inputs, offline: of the experts, weighted for each input, or of the one model.

        With `one_expert`, each input is given to its likeliest expert alone, which costs as much as one model. Outputs
        of experts that are trained with a cross-entropy are logarithms of probabilities.
        """
        self._check_open()
        inputs = to_device(inputs, self.device)
        if self._experts is not None and self._router is not None:
            return self._experts.predict(self._router, inputs, self.own_mixture, one_expert=one_expert)
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                found: Tensor = self.model(inputs)
        finally:
            self.model.train(was_training)
        return found

    def see(self, inputs: Tensor) -> Seen:
        """Let the client's own mixture follow what it sees now: no targets, no training, no upload.

        The mixture is estimated from the last few hundred inputs. Predictions use it at once. Nothing leaves the
        device.
        """
        self._check_open()
        if self._router is None:
            raise ClientError("there is no router yet; the server's replies must be experts, and the client must join")
        seen = self._router.see(to_device(inputs, self.device), self._state.mixture)
        return self._took(seen)

    def follow(self, data: Data) -> Seen | None:
        """As `see`, with labelled data: targets help where the router is not sure. None without experts.

        If the client sends its mixture, its next training starts from this one.
        """
        if self._experts is None or self._router is None:
            return None
        batches = list(nonempty(batches_of(data, self.settings.training.batch_size)))
        if not batches:
            return None
        self._router.forget()
        seen = self._took(self._experts.own_mixture(self._router, batches, self._state.mixture))
        if self._does_send and not self.pending:
            self._base = noisy(seen.mixture, self.mixture_noise)
            load(self.model, self.start_model())
        return seen

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
        batches = passes(batches_of(data, training.batch_size), training.local_epochs, self.device, self.loss)
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
        waiting = self._state.pending
        mixture = self._base if waiting is None else waiting.mixture  # a training that goes on has the same start
        upload = self._upload_blob(local_model, kept)
        pending = PendingUpload(secrets.token_hex(16), self.epoch, upload, kept, mixture)
        own = self._state.own_mixture
        state = replace(self._state, pending=pending, uploads=self.uploads + 1, uploaded_mixture=own)
        self._save(state)  # on disk before it is sent
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
            answer = self._connection.upload(upload, pending.base_epoch, pending.key, attempts, said, pending.mixture)
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
        follower = StreamFollower(self, policy, recent)
        for data in stream:
            yield follower.turn(data)

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
                experts=head.experts,
                pending=None,
            )
        )
        self._base = ()
        self._experts = None if head.experts is None else Experts(answer.models, self.model, self.loss)
        if head.experts is not None:
            self._fetch_router(head.router)
        load(self.model, self._personal_model())
        return Reply(head.epoch, head.mixture, outcome, head.rates or (), head.staleness, detail)

    def _fetch_router(self, digest: str) -> None:
        """Fetch the router unless this one is known. Without it the client has one model, and tries again later."""
        known = self._state.router
        if known is not None and known.digest == digest:
            return
        try:
            body = self._connection.fetch_router(known.digest if known else None)
            if body is not None:
                self._router = self._make_router(body)
                self._save(replace(self._state, router=Blob(body)))
        except (ServerAwayError, wire.WireError) as error:
            logger.warning("the router could not be fetched: %s; predicting with one model", error)

    def _make_router(self, body: bytes) -> ClientRouter:
        router = ClientRouter(wire.decode_router(body), self._own_module, self.device)
        if self.send_mixture and not router.message.takes_mixtures:
            logger.warning("this server estimates mixtures itself; the client's own is not sent")
        return router

    @property
    def _does_send(self) -> bool:
        return self.send_mixture and self._router is not None and self._router.message.takes_mixtures

    def _took(self, seen: Seen) -> Seen:
        """Remember an estimate; it is saved with the next reply or upload. Say once that inputs are strange."""
        self._state = replace(self._state, own_mixture=seen.mixture)
        if seen.strange > MANY_STRANGE and "strange" not in self._has_said:
            self._has_said.add("strange")
            logger.warning("%.0f %% of the inputs fit no cluster of the server", 100 * seen.strange)
        if seen.strange <= MANY_STRANGE:
            self._has_said.discard("strange")
        return seen

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
        if self._experts is None:
            return wire.decode_model(received.data, self.layout)
        pending = self._state.pending
        mixture = (self._base if pending is None else pending.mixture) or self._state.mixture
        weights = torch.tensor(mixture, dtype=torch.float64) if self._router is None else self._router.weights(mixture)
        return self._experts.mixed(weights)

    def _upload_blob(self, local_model: Tensor, kept: Blob) -> Blob:
        """Return the bytes to send: the local model with noise or in another dtype, or else the kept bytes."""
        if self.privacy is not None:
            local_model = self.privacy.apply(local_model, self._personal_model(), self.layout.num_parameters)
        elif self._dtype == "float32":
            return kept
        return self._blob(local_model, self._dtype)

    def _blob(self, vector: Tensor, dtype: wire.DType) -> Blob:
        return Blob(wire.encode_model(vector.float(), self.layout, dtype))

    def _take_state(self) -> None:
        """Decode what was saved; refuse what belongs to another model."""
        state = self._state
        try:
            if state.router is not None:
                self._router = self._make_router(state.router.data)
            if state.experts is not None and state.personal_model is not None:
                models = wire.decode_experts(state.personal_model.data, self.layout, len(state.mixture), state.experts)
                self._experts = Experts(models, self.model, self.loss)
            for blob in state.blobs:
                if blob is not state.router and (blob is not state.personal_model or state.experts is None):
                    wire.decode_model(blob.data, self.layout)
        except wire.WireError as error:
            raise StateError(
                f"the state of {self.client_id!r} belongs to another model: {error.detail}; name another state_dir"
            ) from None
