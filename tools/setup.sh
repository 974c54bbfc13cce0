# Sourced by tools/run, tools/test and .ci/run: sees to what they need, in the system's own packages.
# Installs with apt-get (Debian and its kin) or brew (macOS), only what is missing.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { printf '\n== %s\n' "$*" >&2; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# Installs system packages by name.
install() {
    say "installing $*"
    if has apt-get; then
        local as_root=()
        if [ "$(id -u)" != 0 ]; then
            has sudo || die "run as root, or install by hand: $*"
            as_root=(sudo)
        fi
        if [ -z "${apt_is_fresh:-}" ]; then
            "${as_root[@]}" apt-get update -q >&2
            apt_is_fresh=1
        fi
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -qy --no-install-recommends "$@" >&2
    elif has brew; then
        brew install "$@" >&2
    else
        die "neither apt-get nor brew is here; install by hand: $*"
    fi
}

# Whether the cargo on PATH builds with a compiler that the crate supports.
cargo_is_new_enough() {
    has cargo && has rustc || return 1
    local wanted got
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    got=$(rustc --version 2>/dev/null | cut -d' ' -f2) || return 1
    [ "$(printf '%s\n' "$wanted" "${got%%[-+]*}" | sort -V | head -n 1)" = "$wanted" ]
}

# A compiler and a linker. rustc-web is Debian's current compiler, beside the old one of a release.
need_rust() {
    if ! cargo_is_new_enough; then
        if has apt-get; then
            install ca-certificates gcc libc6-dev
            if [ -n "$(apt-cache search --names-only '^rustc-web$')" ]; then
                install rustc-web cargo-web
            else
                install rustc cargo
            fi
        elif has brew; then
            install rust
        fi
        # The compiler just installed, ahead of an older one elsewhere.
        cargo_is_new_enough || export PATH="/usr/bin:$PATH"
        cargo_is_new_enough || die "needs Rust $(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) or later; this is $(rustc --version 2>&1)"
    fi
    has cc || has gcc || install gcc libc6-dev
}

# rustfmt and clippy of the compiler in use.
need_lints() {
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return
    if has apt-get && [ -n "$(apt-cache search --names-only '^rustfmt-web$')" ]; then
        install rustfmt-web rust-web-clippy
    else
        install rustfmt rust-clippy
    fi
}

# A Python with numpy and safetensors, in $python.
need_python() {
    python=target/venv/bin/python
    "$python" -c 'import numpy, safetensors' 2>/dev/null && return
    has python3 && python3 -c 'import ensurepip, venv' 2>/dev/null || install python3 python3-venv
    python3 -m venv target/venv
    "$python" -m pip install --quiet --disable-pip-version-check numpy safetensors
}

# A subcommand of cargo, as `need_cargo hack`.
need_cargo() {
    export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    has "cargo-$1" && return
    say "installing cargo-$1"
    # It checks and does not compute: optimising it would take longer than it runs.
    cargo install --quiet --locked --debug "cargo-$1"
}

# A Vulkan driver; without a GPU, Mesa's software one. macOS brings Metal.
need_gpu() {
    [ "$(uname -s)" = Linux ] || return 0
    if ! compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null &&
        ! compgen -G '/etc/vulkan/icd.d/*.json' >/dev/null &&
        [ -z "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ] ||
        ! ldconfig -p 2>/dev/null | grep -q 'libvulkan\.so\.1'; then
        install libvulkan1 mesa-vulkan-drivers
    fi
    if [ -z "${XDG_RUNTIME_DIR:-}" ]; then
        # Mesa complains without one.
        XDG_RUNTIME_DIR=$(mktemp -d)
        export XDG_RUNTIME_DIR
        chmod 700 "$XDG_RUNTIME_DIR"
        trap 'rm -rf "$XDG_RUNTIME_DIR"' EXIT
    fi
}
