"""Words that come twice over two connections, piece by piece and whole: each is shown once, whichever comes first."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pieces:
    came: str = ""  #: piece by piece, and not known whole yet
    _ahead: str = ""  #: was shown as part of a whole; its pieces are still to come
    _late: str = ""  #: of these, what has come

    def piece(self, text: str) -> str:
        """What is to be shown of it, and of what was held back before it."""
        if self._ahead:
            self._late += text
            if text and self._ahead.startswith(self._late.strip()):
                if self._ahead == self._late.strip():  # all of it; what comes now is the next
                    self._ahead = self._late = ""
                return ""
            text, self._ahead, self._late = self._late, "", ""
        self.came += text
        return text

    def whole(self, text: str) -> str | None:
        """What of it is still to be shown. None: it is something else than what comes piece by piece."""
        said, came = text.strip(), self.came.lstrip()
        if said and came.startswith(said):  # and the next has begun
            self.came = came[len(said) :]
            return ""
        if came.strip() and not said.startswith(came.rstrip()):
            return None
        self._ahead, self.came, self._late = said[len(came) :].strip(), "", ""
        return said[len(came) :]

    def other_run(self) -> None:
        """Whose whole may have come before its first piece."""
        self._ahead = "" if self._late else self._ahead
        self.came = self._late = ""
