"""Undo one mend of the service after the other, and see that a test fails: `make test-reverts`, some minutes.

Each is undone in a copy of the repository. A mend that no test misses is named at the end, and so is one whose code has
changed so much that it cannot be undone like this.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests", "benchmarks", "experiments")
HERE = "tests/server/"


class Revert(NamedTuple):
    """One mend, undone."""

    what: str
    file: str  # below src/cdfl
    mended: str
    undone: str
    test: str  # that must fail


REVERTS = (
    Revert("pipelined requests wait without limit", "server/connection_limit.py", "len(self.pipeline) >= MOST_WAITING", "False", "test_connection_limit.py -k pipelined"),
    Revert("strangers start at once", "server/rate_limits.py", "if wait > 0:", "if False:", "test_connection_limit.py -k start_at_a_rate"),
    Revert("addresses do not take turns", "server/rate_limits.py", "self._waiting.setdefault(address, OrderedDict())", 'self._waiting.setdefault("", OrderedDict())', "test_connection_limit.py -k addresses_take_turns"),
    Revert("closed connections keep their turn", "server/connection_limit.py", "        self.strangers.leave(connection.address, connection)\n", "", "test_connection_limit.py -k closed_connections"),
    Revert("a good token opens a connection for everything", "server/connection_limit.py", "self._answered, was_known, self.is_known = cycle, self.is_known, False", "self._answered, was_known = cycle, self.is_known", "test_connection_limit.py -k one_good_token"),
    Revert("the newest must go, whoever has most", "server/connection_limit.py", "            if not other.is_known:\n", "            if False:\n", "test_connection_limit.py -k 'takes_all_connections or who_must_go'"),
    Revert("only the last request learns that its peer has gone", "server/connection_limit.py", "        if self.is_busy:\n            self._answered.disconnected = True", "        if False:\n            self._answered.disconnected = True", "test_connection_limit.py -k behind_it"),
    Revert("handshakes are not counted", "server/connection_limit.py", "if self._num_shaking > self.limits.handshakes:", "if False:", "test_connection_limit.py -k silent_handshakes"),
    Revert("handshakes start at once", "server/acceptor.py", "            await turn\n", "", "test_connection_limit.py -k handshakes_start"),
    Revert("a socket without a connection stays open", "server/acceptor.py", "            accepted.close()\n", "            pass\n", "test_connection_limit.py -k without_a_connection"),
    Revert("the log has no limit", "server/rate_limits.py", "if bucket.take(self._clock()) > 0:", "if False:", "test_connection_limit.py -k lines_a_second"),
    Revert("a flood hides other messages", "server/rate_limits.py", "record.pathname, record.lineno", "record.name, record.levelno", "test_connection_limit.py -k lines_a_second"),
    Revert("replies that nobody reads pile up", "server/byte_limits.py", "while self.bytes > self.most_bytes and len(self._held) > 1:", "while False:", "test_connection_limit.py -k 'within_their_bytes or makes_room'"),
    Revert("a client has many replies", "server/byte_limits.py", "if other is not None and other is not sender:", "if False:", "test_connection_limit.py -k one_reply_at_a_time"),
    Revert("forget is undone by a queued upload", "server/store.py", "            raise Withdrawn(names, overtaken)\n", "            pass\n", "test_attacks.py -k withdrawn"),
    Revert("one token takes all streams", "server/events.py", "self._open[client_id] >= self._limits.client_streams", "False", "test_events.py -k one_client_cannot"),
    Revert("old entries are read by all streams at once", "server/events.py", "        async with self._turn:\n", "        if True:\n", "test_events.py -k take_turns"),
    Revert("the operator has no streams of its own", "server/events.py", "        if is_operator:\n            most =", "        if False:\n            most =", "test_events.py -k leave_the_operator"),
    Revert("events can be linked", "server/events.py", "    if not whole:\n        return public\n", "", "test_attacks.py -k others_learn"),
    Revert("one upload fails its batch", "server/upload_losses.py", "            if len(fresh) > 1:  # answer those that cause it, and no others", "            if False:", "test_engine.py test_app.py"),
    Revert("whoever has no finite loss gets 503", "server/upload_losses.py", "        drop(self.store, submission, UnfitError(why))\n\n\n", "        drop(self.store, submission, unavailable(submission, error))\n\n\n", "test_engine.py test_app.py"),
    Revert("the last piece of an answer must be read in 30 seconds", "server/connection_limit.py", "            elif since is not None and not connection.is_done:\n                self.waits(connection)", "            elif False:\n                self.waits(connection)", "test_connection_limit.py -k steady_reader"),
    Revert("a damaged blob is served", "server/store_reader.py", "    if found != expected:\n", "    if False:\n", "test_attacks.py -k damaged"),
    Revert("an upload's digest is not compared", "server/uploads.py", "if declared and digest != declared:", "if False:", "test_attacks.py -k digests"),
    Revert("a locked database hangs those who read", "server/uploads.py", "run_in_executor(self._readers, function", "run_in_executor(self._threads, function", "test_attacks.py -k threads_of_their_own"),
    Revert("a reply that does not fit is refused", "server/app.py", "    except UnfitError:\n        return answer.body, answer.digest\n", "    except ZeroDivisionError:\n        return answer.body, answer.digest\n", "test_attacks.py -k does_not_fit"),
    Revert("streams outlive their token", "server/events.py", "                    if not await is_allowed():\n                        return\n", "                    await is_allowed()\n", "test_events.py -k no_longer_allowed"),
    Revert("other proxy data are taken silently", "server/engine_startup.py", "    if not changed:\n        return state\n", "    if True:\n        return state\n", "test_attacks.py -k other_proxy"),
    Revert("another network is taken silently", "server/fingerprint.py", '        "model": fingerprint(_description(instance.model)),\n', "", "test_attacks.py -k another_network"),
    Revert("a second server is let in", "server/database.py", "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass", "test_attacks.py -k no_second_server"),
    Revert("a proxy's page ends an upload", "client/connection.py", "if not is_answer and status not in NOT_A_SERVER:", "if False:", "../client"),
    Revert("any digits are seconds", "client/connection.py", "if text.strip().isascii() and text.strip().isdigit():", "if text.strip().isdigit():", "../client"),
    Revert("nested JSON raises", "client/connection.py", "except (ValueError, TypeError, KeyError, RecursionError):\n        return \"\"", "except (ValueError, TypeError, KeyError):\n        return \"\"", "../client"),
    Revert("an exchange has no deadline", "client/connection.py", "        self._timer.start()\n", "", "../client"),
    Revert("a damaged reply is taken", "client/connection.py", "if declared is not None and hashlib.sha256(body).hexdigest() != declared:", "if False:", "../client"),
    Revert("an operator's token with white space is accepted", "server/auth.py", "bearer_token(f\"Bearer {token.strip()}\")", "token", "test_identity.py -k operator_token"),
    Revert("tokens are sent in the clear without a warning", "cli/serve.py", "if tls is None and not is_open and not _is_loopback(host):", "if False:", "../cli -k serve"),
    Revert("a redirect repeats the host", "server/app.py", "    app.router.redirect_slashes = False", "    app.router.redirect_slashes = True", "test_identity.py -k redirect"),
    Revert("any host is answered", "server/host_check.py", "if host_in(given) not in self._names:", "if False:", "test_identity.py -k own_names"),
    Revert("what was sent comes back in an answer that cannot be written", "server/app.py", 'separators=(",", ":")\n        )  # in ASCII', 'separators=(",", ":"), ensure_ascii=False\n        )  # in ASCII', "test_hostile.py -k 'test_bodies and UTF'"),
    Revert("failed authentications are not counted", "server/app.py", "        engine.metrics.auth_failures.inc()\n", "", "test_identity.py -k failed_auth"),
    Revert("tokens do not expire", "server/auth.py", "None if seconds is None else now + seconds", "None", "test_identity.py -k expire"),
    Revert("certificates are read once", "server/tls.py", "if seen != self._seen:", "if False:", "test_identity.py -k new_certificate"),
    Revert("a certificate is not compared with the token", "server/auth.py", "if certified is not None and certified != claim.client_id:", "if False:", "test_identity.py -k client_certificates"),
)  # fmt: skip


def main(words: list[str]) -> int:
    """Undo all mends, or those with one of the words in their name; return how many were not noticed."""
    chosen = [each for each in REVERTS if not words or any(word in each.what for word in words)]
    missed = []
    with tempfile.TemporaryDirectory(prefix="reverts-") as place:
        copy = Path(place)
        for folder in FOLDERS:
            shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "results"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        for revert in chosen:
            found = undo(revert, copy)
            print(f"{found:>10}  {revert.what}", flush=True)
            if found != "noticed":
                missed.append(revert.what)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} were noticed")
    return len(missed)


def undo(revert: Revert, copy: Path) -> str:
    """Undo one mend, run its tests, and do it again."""
    file = copy / "src" / "cdfl" / revert.file
    text = file.read_text()
    if text.count(revert.mended) != 1:
        return "not found"
    file.write_text(text.replace(revert.mended, revert.undone))
    tests, _, option = revert.test.partition(" -k ")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not browser and not long"]
    command += [str(Path(HERE, name)) for name in tests.split()] + (["-k", option.strip("'")] if option else [])
    try:
        code = subprocess.run(command, cwd=copy, capture_output=True, timeout=180).returncode  # noqa: S603
    except subprocess.TimeoutExpired:
        code = 1  # it hangs: that is noticed, too
    finally:
        file.write_text(text)
    return {0: "missed", 1: "noticed"}.get(code, f"status {code}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
