"""Times the page's server as its user meets it, with its memory, and writes one JSON file.

    python benchmarks/studio.py                            # all cases with lite0
    python benchmarks/studio.py --cases strokes clicks --photos PHOTOS
    python benchmarks/studio.py --quick                    # small numbers: to see that it runs

The server is a process of its own, so its memory is its own; the clients of the case `load` run in another. Without --photos
the photos are noise with a disc, as JPEG. The case `again` segments in this process, without a server.
"""

import argparse
import http.client
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np
from PIL import Image

CASES = ("strokes", "clicks", "grid", "load", "again")
AIM_AGAIN = 0.6  # of the first time, with 200 photos whose features are known
SIZE = (750, 1000)


class Client:
    """One connection to a server."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._token = parts.query.partition("token=")[2]
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=300)

    def ask(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, bytes]:
        headers = {"Authorization": f"token {self._token}", "X-Cyctr": "1"}
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        self._connection.request(method, f"{path}?{urlencode(query)}" if query else path, content, headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def value(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        status, content = self.ask(method, path, body, **query)
        if status != 200:
            sys.exit(f"{method} {path}: {status} {content[:200]!r}")
        return json.loads(content)

    def close(self) -> None:
        self._connection.close()

    def events(self) -> Iterator[tuple[str, Any]]:
        """Events from now on; this connection does nothing else then."""
        self._connection.request("GET", "/api/events", headers={"Authorization": f"token {self._token}"})
        answer = self._connection.getresponse()
        return self._read(answer)

    def _read(self, answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
        kind = ""
        while line := answer.readline().decode():
            if line.startswith("event: "):
                kind = line[7:].strip()
            elif line.startswith("data: "):
                yield kind, json.loads(line[6:])


class Server:
    """A server in a process of its own."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        command = [sys.executable, "-m", "cyctr", "studio", str(folder), "--no-browser", "--model", given.model]
        started = time.perf_counter()
        self.process = subprocess.Popen([*command, "--device", given.device], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = next(line.split()[1] for line in self.process.stdout if line.startswith("open "))
        self.start_seconds = time.perf_counter() - started
        self.client = Client(self.address)

    def wait_for_network(self) -> None:
        while not self.client.value("GET", "/api/project")["model"]["ready"]:
            time.sleep(0.05)

    def mib(self, which: str = "VmRSS") -> float | None:
        """Memory now, or at most (VmHWM); none where the system does not say."""
        try:
            lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        except OSError:
            return None
        return next(round(int(line.split()[1]) / 1024, 1) for line in lines if line.startswith(which))

    def end(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.communicate()


@contextmanager
def serving(folder: Path, given: argparse.Namespace) -> Iterator[Server]:
    server = Server(folder, given)
    try:
        yield server
    finally:
        server.end()


def make_photo(path: Path, seed: int, size: tuple[int, int] = SIZE) -> None:
    """Soft noise with a brighter disc."""
    random = np.random.default_rng(seed)
    small = random.integers(0, 160, (size[0] // 10, size[1] // 10, 3), dtype=np.uint8)
    pixels = np.array(Image.fromarray(small).resize(size[::-1], Image.Resampling.BICUBIC))
    pixels[disc(seed, size)] += 90
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=88)


def disc(seed: int, size: tuple[int, int]) -> Any:
    random = np.random.default_rng(seed)
    top, left = (random.uniform(0.4, 0.6) * side for side in size)
    return (np.arange(size[0])[:, None] - top) ** 2 + (np.arange(size[1]) - left) ** 2 < size[0] * size[1] / 6 / np.pi


def photos(folder: Path, count: int, given: argparse.Namespace, different: int = 64) -> list[Path]:
    """Copies of so many photos in a folder, again and again where there are fewer; so many of noise are different."""
    folder.mkdir(parents=True)
    if given.photos is None:
        made = folder.parent / f"made-{different}"
        for seed in range(0 if made.exists() else min(count, different)):
            make_photo(made / f"{seed:03d}.jpg", seed)
        sources = sorted(made.iterdir())
    else:
        sources = sorted(path for path in given.photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    for number in range(count):
        source = sources[number % len(sources)]
        shutil.copyfile(source, folder / f"{number:06d}{source.suffix}")
    return sorted(folder.iterdir())


def png(mask: Any) -> bytes:
    content = BytesIO()
    Image.fromarray(mask.astype(np.uint8) * np.uint8(255)).save(content, "PNG")
    return content.getvalue()


def paint(client: Client, photo: Any, mask: Any, base: int = 0) -> int:
    place = {"x": 0, "y": 0, "width": mask.shape[1], "height": mask.shape[0], "base": base}
    path = f"/api/photos/{photo['id']}/mask/1"
    return int(client.value("PUT", path, png(mask), **place)["revision"])


def strokes(work: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Seconds from the end of a stroke to the first preview, and to the sixth."""
    photos(work / "strokes", 7, given)
    firsts, sixths, writes = [], [], []
    with serving(work / "strokes", given) as server:
        server.wait_for_network()
        client, listed = server.client, server.client.value("GET", "/api/photos")["items"]
        client.value("POST", "/api/classes", {"name": "thing"})
        events = Client(server.address).events()
        base = 0
        shown = [one["id"] for one in listed[1:]]
        mask = disc(0, (listed[0]["height"], listed[0]["width"]))
        for stroke in range(given.repeats + 1):
            changed = mask.copy()
            changed[: 10 * stroke] = False
            started = time.perf_counter()
            base = paint(client, listed[0], changed, base)
            writes.append(time.perf_counter() - started)
            if stroke == 0:
                client.value("POST", f"/api/photos/{listed[0]['id']}/example", {"on": True})
            request = client.value("POST", "/api/previews", {"photos": shown, "class": 1})["request"]
            seen = 0
            for kind, data in events:
                if kind == "preview" and data["request"] == request:
                    seen += 1
                    if seen == 1:
                        firsts.append(time.perf_counter() - started)
                    if seen == len(shown):
                        sixths.append(time.perf_counter() - started)
                        break
        peak = server.mib("VmHWM")
    return {
        "stroke_to_disk_seconds": median(writes[1:]),
        "first_stroke_to_first_preview_seconds": round(firsts[0], 3),
        "stroke_to_first_preview_seconds": median(firsts[1:]),
        "stroke_to_sixth_preview_seconds": median(sixths[1:]),
        "server_peak_mib": peak,
    }


def clicks(work: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Seconds from a click to its mask, the first and the next ones on a photo."""
    photos(work / "clicks", given.repeats, given)
    found: dict[str, Any] = {}
    with serving(work / "clicks", given) as server:
        server.wait_for_network()
        client = server.client
        listed, has_sam = client.value("GET", "/api/photos")["items"], client.value("GET", "/api/project")["sam"]["ready"]
        client.value("POST", "/api/classes", {"name": "thing"})
        for kind in ("plain", "sam") if has_sam else ("plain",):
            first, next_ones = [], []
            for photo in listed:
                for count in range(1, 4):
                    middle = [photo["width"] // 2, photo["height"] // 2]
                    points = [[*middle, 1], [5, 5, 0], [photo["width"] - 5, 5, 0]][:count]
                    click = {"class": 1, "points": points, "box": None, "kind": kind}
                    started = time.perf_counter()
                    client.value("POST", f"/api/photos/{photo['id']}/click", click)
                    (first if count == 1 else next_ones).append(time.perf_counter() - started)
            found[kind] = {"first_click_seconds": median(first), "next_click_seconds": median(next_ones)}
        found["server_peak_mib"] = server.mib("VmHWM")
    return found


def grid(work: Path, given: argparse.Namespace) -> dict[str, Any]:
    """A grid of many photos: time to its first page with all pictures, and the server's memory."""
    count, page = given.grid, 60
    photos(work / "grid", count, given)
    with serving(work / "grid", given) as server:
        client = server.client
        before = server.mib()
        started = time.perf_counter()
        listed = client.value("GET", "/api/photos", sort="confidence", limit=page)
        first_list = time.perf_counter() - started
        pictures(server.address, listed["items"])
        first_page = time.perf_counter() - started
        started = time.perf_counter()
        pictures(server.address, listed["items"])
        again = time.perf_counter() - started
        lists = []
        for offset in range(0, count, page):
            started = time.perf_counter()
            part = client.value("GET", "/api/photos", sort="confidence", offset=offset, limit=page)
            lists.append(time.perf_counter() - started)
            pictures(server.address, part["items"][:: max(1, page // 6)])
        return {
            "photos": listed["total"],
            "start_seconds": round(server.start_seconds, 2),
            "first_list_seconds": round(first_list, 3),
            "first_page_with_pictures_seconds": round(first_page, 3),
            "same_page_again_seconds": round(again, 3),
            "list_seconds": median(lists),
            "server_mib_before": before,
            "server_mib_after": server.mib(),
            "server_peak_mib": server.mib("VmHWM"),
        }


def pictures(address: str, listed: Sequence[Any]) -> None:
    """Fetches pictures over six connections, as a browser does."""

    def fetch(part: Sequence[Any]) -> None:
        client = Client(address)
        for one in part:
            client.ask("GET", f"/api/photos/{one['id']}/image", side=320)
        client.close()

    run_together(lambda number: fetch(listed[number::6]), 6)


def load(work: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Many clients at once: lists, photos, pictures and strokes; how many a second, and what failed."""
    photos(work / "load", 200, given)
    with serving(work / "load", given) as server:
        server.wait_for_network()
        server.client.value("POST", "/api/classes", {"name": "thing"})
        before = server.mib()
        script = [sys.executable, __file__, "--load-from", server.address]
        sizes = ["--clients", str(given.clients), "--requests", str(given.requests)]
        outcome = json.loads(subprocess.run([*script, *sizes], capture_output=True, text=True, check=True).stdout)
        listed = server.client.value("GET", "/api/photos", limit=500)["items"]
        written = sum(len(one["masks"]) for one in listed)
        memory = {"server_mib_before": before, "server_mib_after": server.mib(), "server_peak_mib": server.mib("VmHWM")}
        return outcome | memory | {"masks_on_disk": written}


def load_from(address: str, clients: int, requests: int) -> dict[str, Any]:
    """What the clients see."""
    listed = Client(address).value("GET", "/api/photos", limit=500)["items"]
    times: list[float] = []
    failures: list[str] = []

    def one(number: int) -> None:
        client, random = Client(address), np.random.default_rng(number)
        own, base = listed[number % len(listed)], 0
        for _ in range(requests):
            photo, kind = listed[random.integers(len(listed))], random.random()
            started = time.perf_counter()
            if kind < 0.1:
                status, content = client.ask("GET", "/api/photos", sort="confidence", limit=60)
            elif kind < 0.5:
                status, content = client.ask("GET", f"/api/photos/{photo['id']}")
            elif kind < 0.9:
                status, content = client.ask("GET", f"/api/photos/{photo['id']}/image", side=160)
            else:
                place = {"x": int(random.integers(500)), "y": int(random.integers(300)), "width": 20, "height": 20}
                patch = png(np.ones((20, 20), bool))
                status, content = client.ask("PUT", f"/api/photos/{own['id']}/mask/1", patch, base=base, **place)
                base = json.loads(content).get("revision", base)
            times.append(time.perf_counter() - started)
            if status != 200:
                failures.append(f"{status} {content[:100]!r}")

    started = time.perf_counter()
    run_together(one, clients)
    seconds = time.perf_counter() - started
    ordered = sorted(times)
    return {
        "clients": clients,
        "requests": len(times),
        "failures": len(failures),
        "first_failures": failures[:3],
        "requests_per_second": round(len(times) / seconds, 1),
        "median_seconds": median(times),
        "p99_seconds": round(ordered[int(0.99 * len(ordered))], 4),
    }


def again(work: Path, given: argparse.Namespace) -> dict[str, Any]:
    """All photos segmented, and once more after a new example, with the features that are kept by then."""
    from cyctr import Segmenter

    paths = photos(work / "again", given.again + 2, given, given.again + 2)
    segmenter = Segmenter.from_pretrained(given.model, device=given.device)
    segmenter.remember_features(work / "features")
    cache = segmenter.network.cache
    assert cache is not None
    shots = [np.array(Image.open(path)) for path in paths[:2]]
    masks = [disc(number, (shot.shape[0], shot.shape[1])) for number, shot in enumerate(shots)]
    rows: dict[str, Any] = {}
    for name, count in (("first", 1), ("same example", 1), ("new example", 2)):
        hits, misses, started = cache.hits, cache.misses, time.perf_counter()
        support = segmenter.encode_support(shots[:count], masks[:count], name="thing")
        encoded = time.perf_counter() - started
        done = sum(1 for _ in segmenter.segment_many(paths[2:], support))
        rows[name] = {
            "encode_seconds": round(encoded, 3),
            "seconds": round(time.perf_counter() - started, 2),
            "photos": done,
            "looks_known": cache.hits - hits,
            "looks_new": cache.misses - misses,
        }
    ratios = {name: round(rows[name]["seconds"] / rows["first"]["seconds"], 3) for name in ("same example", "new example")}
    kept = {"ratios": ratios, "aim": AIM_AGAIN, "cache_mib": round(cache.nbytes / 2**20)}
    return rows | kept | _parts(segmenter, paths)


def _parts(segmenter: Any, paths: Sequence[Path]) -> dict[str, float]:
    """Where the time of a photo goes: reading it, the backbone, and the rest."""
    import torch

    from cyctr.images.geometry import fit_image, planes
    from cyctr.images.imaging import read_image

    reading, fitting, passes = [], [], []
    for path in paths[2:12]:
        started = time.perf_counter()
        pixels = read_image(path)
        read = time.perf_counter()
        fitted = fit_image(planes(pixels), segmenter.network.input)[None].to(segmenter.device)
        fit = time.perf_counter()
        with torch.inference_mode(), segmenter.network.precision():
            segmenter.network.model.backbone(fitted)
        reading.append(read - started)
        fitting.append(fit - read)
        passes.append(time.perf_counter() - fit)
    return {"read_seconds": median(reading), "fit_seconds": median(fitting), "backbone_seconds": median(passes)}


def run_together(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 4)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lite0")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--photos", type=Path, help="a folder; default: noise with a disc")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--repeats", type=int, default=7, help="of strokes, and photos that are clicked")
    parser.add_argument("--grid", type=int, default=5000, help="photos in the grid")
    parser.add_argument("--again", type=int, default=200, help="photos that are segmented again")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=1000, help="of each client")
    parser.add_argument("--quick", action="store_true", help="small numbers: to see that it runs")
    parser.add_argument("--output", type=Path, help="default: studio-DEVICE.json beside this script")
    parser.add_argument("--load-from", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.load_from:
        print(json.dumps(load_from(given.load_from, given.clients, given.requests)))
        return
    if given.quick:
        given.repeats, given.grid, given.again, given.clients, given.requests = 2, 90, 3, 4, 20
    path = given.output or Path(__file__).with_name(f"studio-{given.device}.json")
    about = {"model": given.model, "device": given.device, "cores": os.cpu_count(), "machine": platform.machine()}
    report: dict[str, Any] = about | {"photos": "noise" if given.photos is None else "of a folder", "quick": given.quick}
    with tempfile.TemporaryDirectory() as work:
        for name in given.cases:
            report[name] = globals()[name](Path(work), given)
            print(name, json.dumps(report[name], indent=1), flush=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(path)


if __name__ == "__main__":
    main()
