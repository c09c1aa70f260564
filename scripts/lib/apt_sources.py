"""Writes copies of the system's Debian sources, with the component non-free added, into a folder.

Usage: apt_sources.py FOLDER

Reads both forms, deb822 (.sources) and one line each (.list), and keeps everything else of a source as it is:
mirror, signing key, options. Sources of other vendors are left out: they have no non-free, and their being out of
reach is no concern of this fetch.
"""

import pathlib
import re
import sys


def codename():
    for line in pathlib.Path("/etc/os-release").read_text().splitlines():
        key, _, value = line.partition("=")
        if key == "VERSION_CODENAME":
            return value.strip('"')
    return ""


def ours(suites, components, release):
    """A source of the distribution itself: its suites are the release's, and it has the component main."""
    names = {release, "stable", "testing", "unstable", "sid", "oldstable"}
    plain = {re.sub(r"(-updates|-security|-backports|/updates)$", "", suite) for suite in suites}
    return bool(plain & names) and "main" in components


def with_non_free(components):
    return components if "non-free" in components else [*components, "non-free"]


def deb822(text, release):
    """The stanzas of a .sources file that apply, with non-free added."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        # A field goes on over the lines that begin with a blank (an inline key does).
        fields = re.findall(r"^([A-Za-z-]+):[ \t]*(.*(?:\n[ \t].*)*)", stanza, re.M)
        values = {name.lower(): value for name, value in fields}
        components = values.get("components", "").split()
        if values.get("enabled", "yes").strip().lower() in ("no", "false", "0"):
            continue
        if "deb" not in values.get("types", "").split() or not ours(values.get("suites", "").split(), components, release):
            continue
        out = []
        for name, value in fields:
            if name.lower() == "types":
                value = "deb"
            elif name.lower() == "components":
                value = " ".join(with_non_free(components))
            out.append(f"{name}: {value}")
        yield "\n".join(out) + "\n"


def one_line(text, release):
    """The lines of a .list file that apply, with non-free added."""
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s+([^#]+)", line)
        if not match or match.group(2).startswith("cdrom:"):
            continue
        options, uri, suite, components = match.groups()
        components = components.split()
        if ours([suite], components, release):
            yield f"deb {options or ''}{uri} {suite} {' '.join(with_non_free(components))}\n"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    etc = pathlib.Path("/etc/apt")
    release = codename()
    stanzas, lines = [], []
    for path in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]:
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        if path.suffix == ".sources":
            stanzas += deb822(text, release)
        else:
            lines += one_line(text, release)
    if not stanzas and not lines:
        sys.exit(f"no source of this distribution ({release or 'unknown'}) is in /etc/apt")
    if stanzas:
        (folder / "clients.sources").write_text("\n".join(stanzas))
    if lines:
        (folder / "clients.list").write_text("".join(lines))


if __name__ == "__main__":
    main()
