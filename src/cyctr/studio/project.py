"""A project: a folder of plain files beside the photos, with the classes, the settings and the masks of each photo."""

import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cyctr import json_files
from cyctr.errors import CyctrError, DataError
from cyctr.formats.writing import file_names
from cyctr.inference.segment_options import SegmentOptions
from cyctr.storage import write_atomically
from cyctr.studio.refusals import FullError, RefusedError, UnknownError
from cyctr.studio.store import Store
from cyctr.studio.trust import check_folders, is_plain, whole_number
from cyctr.words import one_line

NAME = "cyctr-studio"
"""The project's folder within that of the photos, where no other is given."""
ABOUT, STATE, LOCK = "project.json", "state.sqlite", ".cyctr.lock"
MASKS, FOUND, IMAGES, NEGATIVES, CACHE, EXPORTS = "masks", "found", "images", "negatives", "cache", "exports"
_OWN = (".", STATE, MASKS, FOUND, IMAGES, NEGATIVES, CACHE, EXPORTS)
FEATURES = "features"  # within the cache
_FORMAT, _VERSION, _LONGEST_VERSION = "cyctr-studio-", 1, 9
_LONGEST_NAME, _MOST_CLASSES = 120, 254
_COLOURS = ("#e8453c", "#3b82f6", "#22a559", "#f59e0b", "#a855f7", "#06b6d4", "#ec4899", "#84cc16", "#f97316", "#6366f1")
_COLOUR = re.compile(r"#[0-9a-f]{6}")


@dataclass(frozen=True)
class Class:
    """What is looked for.

    Attributes:
        id: from 1; a class that was removed does not give its number to another.
        name: any text.
        color: #rrggbb, on the page.
        folder: of its masks, within each folder of masks.
        before: the folder that is being renamed, if so.
    """

    id: int
    name: str
    color: str
    folder: str
    before: str | None = None


@dataclass(frozen=True)
class Settings:
    """What a user chooses for all photos.

    Attributes:
        threshold: probability above which a pixel is of the class.
        zoom: look again, closer, at what is small.
        edges: let masks follow the edges of the photo.
        reject_is_negative: a photo with nothing in it becomes a negative of every class.
    """

    threshold: float = 0.5
    zoom: bool = True
    edges: bool = True
    reject_is_negative: bool = True

    def options(self) -> SegmentOptions:
        """How photos are segmented; raises ConfigError for what may not be."""
        return SegmentOptions(threshold=self.threshold, zoom=self.zoom, edges=self.edges)

    def changed(self, given: Mapping[str, Any]) -> "Settings":
        """These settings with others in place of some."""
        unknown = sorted(given.keys() - vars(self).keys())
        if unknown:
            raise RefusedError(f"setting {unknown[0]!r:.40} does not exist; expected {', '.join(vars(self))}")
        for name, value in given.items():
            if isinstance(vars(self)[name], bool) and not isinstance(value, bool):
                raise RefusedError(f"setting {name} is {value!r:.40}; expected true or false")
        made = replace(self, **given)
        made.options()
        return made


@dataclass
class Project:
    """An open project. Threads may share it.

    Attributes:
        folder: its own.
        photos: the folder of photos.
        store: what is known of each photo and mask.
        classes: by id.
        settings: of all photos.
        problems: a line for each thing that was passed over when it was opened.
        is_new: whether it was made just now.
    """

    folder: Path
    photos: Path
    store: Store
    classes: dict[int, Class]
    settings: Settings
    problems: list[str] = field(default_factory=list)
    is_new: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    def class_of(self, id: int) -> Class:  # noqa: A002 - the page's word
        """The class of that id."""
        if id not in self.classes:
            raise UnknownError(f"class {id} does not exist; load the page again")
        return self.classes[id]

    def add_class(self, name: object, color: object = None) -> Class:
        """A new class."""
        with self.lock:
            text = self._free_name(name)
            if len(self.classes) >= _MOST_CLASSES:
                raise RefusedError(f"there are {len(self.classes)} classes; expected at most {_MOST_CLASSES}: remove one")
            number = 1 + max([whole_number(self.store.note("last class")), *self.classes])
            shown = _COLOURS[(number - 1) % len(_COLOURS)] if color is None else _checked_colour(color)
            made = Class(number, text, shown, self._folder(text))
            self._save({**self.classes, number: made}, self.settings)
            self.store.keep("last class", str(number))
            return made

    def change_class(self, id: int, name: object = None, color: object = None) -> Class:  # noqa: A002
        """A class with another name or colour; its folders of masks are renamed, too."""
        with self.lock:
            made = self.class_of(id)
            if color is not None:
                made = replace(made, color=_checked_colour(color))
            if name is not None and name != made.name:
                text = self._free_name(name, made)
                folder = self._folder(text, made)
                made = replace(made, name=text, folder=folder, before=made.folder if folder != made.folder else None)
            self._save({**self.classes, id: made}, self.settings)
            self._finish_renames()
            return self.classes[id]

    def remove_class(self, id: int) -> None:  # noqa: A002
        """Forgets a class; whoever calls has removed its masks."""
        with self.lock:
            self.class_of(id)
            self.store.drop_class(id)
            self._save({number: one for number, one in self.classes.items() if number != id}, self.settings)

    def change_settings(self, given: Mapping[str, Any]) -> Settings:
        """The settings with others in place of some."""
        with self.lock:
            made = self.settings.changed(given)
            self._save(self.classes, made)
            return made

    def places(self, class_id: int) -> tuple[Path, Path]:
        """The folders with the masks of a class: those of examples, and all others."""
        own = self.class_of(class_id).folder
        return self.folder / MASKS / own, self.folder / FOUND / own

    def close(self) -> None:
        """Ends all work with its files."""
        self.store.close()

    def _free_name(self, name: object, own: Class | None = None) -> str:
        text = name.strip() if isinstance(name, str) else ""
        if not _is_name(text):
            raise RefusedError(f"the class is called {name!r:.60}; expected text of 1 to {_LONGEST_NAME} characters")
        if any(one.name == text for one in self.classes.values() if one is not own):
            raise RefusedError(f"there is a class {one_line(text)!r} already; choose another name")
        return text

    def _folder(self, name: str, own: Class | None = None) -> str:
        """A folder's name for a class, which no other class has."""
        others = [one for one in self.classes.values() if one is not own]
        taken = {one.folder.casefold() for one in others}
        plain = file_names([name])[name]
        return plain if plain.casefold() not in taken else file_names([name, name.swapcase()])[name]

    def _save(self, classes: dict[int, Class], settings: Settings) -> None:
        listed = [
            {name: value for name, value in vars(one).items() if name != "before" or value is not None}
            for _, one in sorted(classes.items())
        ]
        relative = os.path.relpath(self.photos, self.folder)
        about = {"format": f"{_FORMAT}{_VERSION}", "photos": relative, "classes": listed, "settings": vars(settings)}
        try:
            write_atomically(self.folder / ABOUT, (json.dumps(about, indent=1) + "\n").encode())
        except OSError as error:
            raise FullError(f"{self.folder / ABOUT}: cannot be written ({error.strerror}); it is tried again") from error
        self.classes, self.settings = classes, settings

    def _finish_renames(self) -> None:
        """Renames the folders of classes that have a new name; what was begun before a crash is finished."""
        waiting = [one for one in self.classes.values() if one.before is not None]
        for one in waiting:
            for place in (MASKS, FOUND, NEGATIVES):
                old, new = self.folder / place / str(one.before), self.folder / place / one.folder
                if old.is_dir() and not (new.is_dir() and any(new.iterdir()) and not _same(old, new)):
                    os.rename(old, new)
        if waiting:
            self._save({number: replace(one, before=None) for number, one in self.classes.items()}, self.settings)


def open_project(folder: Path, place: Path | None = None, begin: Callable[[Project], None] = lambda project: None) -> Project:
    """The project of a folder of photos, or of a project's own folder; a new one where there is none.

    Args:
        folder: of photos.
        place: the project's folder, by default within that of the photos.
        begin: does what a new project needs.

    Raises:
        DataError: a folder is missing or cannot be read or written, or the project is of a newer version.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "no such folder"
        raise DataError(f"{folder}: {what}; expected a folder of photos")
    if place is None and _is_project(folder):
        place, folder = folder, _photos_of(folder)
    place = folder / NAME if place is None else place
    if place.resolve() == folder.resolve():
        raise DataError(f"{place}: is the folder of the photos; choose one of its own for the project", "project")
    about = _read(place / ABOUT)
    is_new = about is None
    if is_new and place.is_dir() and not all(path.name.startswith(_OWN) for path in place.iterdir()):
        raise DataError(f"{place}: holds other files than a project's; choose an empty folder", "project")
    try:
        place.mkdir(parents=True, exist_ok=True)
        writable = os.access(place, os.W_OK)
    except OSError as error:
        raise DataError(
            f"{place}: cannot be made ({error.strerror}); choose another folder for the project", "project"
        ) from error
    if not writable:
        raise DataError(f"{place}: cannot be written; choose another folder for the project", "project")
    classes, settings = _parsed(about or {}, place / ABOUT)
    check_folders(place, [place / kind for kind in _OWN[1:]])
    check_folders(place, [place / kind / one.folder for kind in (MASKS, FOUND, NEGATIVES) for one in classes.values()])
    project = Project(place, folder, Store(place / STATE), classes, settings, is_new=is_new)
    try:
        if is_new:
            begin(project)
            project._save(project.classes, project.settings)  # last: until then it is begun again
        project._finish_renames()
    except BaseException:
        project.close()
        raise
    return project


def _is_project(folder: Path) -> bool:
    try:
        return str(json_files.read_object(folder / ABOUT).get("format", "")).startswith(_FORMAT)
    except (OSError, ValueError):
        return False


def _photos_of(folder: Path) -> Path:
    given = json_files.read_object(folder / ABOUT).get("photos", "..")
    photos = Path(os.path.normpath(folder / str(given)))
    if not isinstance(given, str) or not os.path.isdir(photos):
        raise DataError(f"{folder}: its photos were in {photos}, which is not there; give the folder where they are now")
    return photos


def _read(path: Path) -> dict[str, Any] | None:
    """What a project says of itself; none where there is none."""
    try:
        about = json_files.read_object(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); restore it, or move it away to begin again") from error
    version = str(about.get("format", "")).removeprefix(_FORMAT)
    if not version.isdecimal():
        raise DataError(f"{path}: is not of a project; choose another folder", "project")
    if len(version) > _LONGEST_VERSION or int(version) > _VERSION:
        raise DataError(f"{path}: is of a newer version of cyctr (format {version:.20}); update cyctr to open it")
    return about


def _parsed(about: Mapping[str, Any], path: Path) -> tuple[dict[int, Class], Settings]:
    """The classes and settings that a project's file names."""
    listed, given = about.get("classes", []), about.get("settings", {})
    if not isinstance(listed, list) or not isinstance(given, dict):
        raise DataError(f"{path}: has classes or settings of another kind; expected a list and an object: restore the file")
    classes = [_class(one) for one in listed]
    for values in ([one.id for one in classes], [one.name for one in classes], [one.folder.casefold() for one in classes]):
        if len(set(values)) < len(values):
            raise DataError(f"{path}: has two classes of one id, name or folder; restore the file")
    try:
        settings = Settings().changed({name: value for name, value in given.items() if name in vars(Settings())})
    except CyctrError as error:
        raise DataError(f"{path}: {one_line(error)}; restore the file") from error
    return {one.id: one for one in classes}, settings


def _class(value: Any) -> Class:
    match value:
        case {"id": int(number), "name": str(name), "color": str(color), "folder": str(folder)}:
            before = value.get("before")
            plain = is_plain(folder) and (before is None or is_plain(before))
            if plain and _is_name(name) and _COLOUR.fullmatch(color) and 1 <= number <= 2**31 and number is not True:
                return Class(number, name, color, folder, before)
    raise DataError(f"{ABOUT}: has the class {value!r:.60}; expected id, name, color and folder: restore the file")


def _is_name(text: str) -> bool:
    """Whether a class may be called so."""
    return 0 < len(text) <= _LONGEST_NAME and "\0" not in text and not any("\ud800" <= one <= "\udfff" for one in text)


def _checked_colour(value: object) -> str:
    if not isinstance(value, str) or not _COLOUR.fullmatch(value.lower()):
        raise RefusedError(f"color is {value!r:.40}; expected #rrggbb")
    return value.lower()


def _same(one: Path, other: Path) -> bool:
    return os.path.samefile(one, other)  # a rename that changes capitals only, where these do not count
