"""The errors a user can meet. The command line prints their one line and exits with code 2."""


class CyctrError(Exception):
    """Says which value was wrong, what was expected and what to do next.

    Attributes:
        options: names of the caller's options that the remedy speaks of, such as "output". The command line prints them
            as its flags behind the message; Python users know them as arguments.
    """

    def __init__(self, message: object = "", *options: str) -> None:
        super().__init__(message)
        self.options = options


class ConfigError(CyctrError):
    """A setting outside its range, or settings that contradict each other."""


class DataError(CyctrError):
    """Images, masks or labels that cannot form an episode."""


class NothingMarkedError(DataError):
    """A mask that is 0 everywhere."""


class WeightsError(CyctrError):
    """Backbone weights that are missing, damaged or made for another network."""


class CheckpointError(CyctrError):
    """A checkpoint that cannot be read or does not fit."""


class TrainingError(CyctrError):
    """Training that cannot go on."""


class PeerError(TrainingError):
    """Another process that trains the same network has ended; what it said itself says why."""
