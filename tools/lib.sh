# Shared by the scripts in this folder: sourced, never run. Callers have `set -euo pipefail`.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/kvblend

test_jobs=$(($(nproc) + 2)) # many tests wait for time-outs

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Debian/Ubuntu packages: to build, and to test (Python for the end-to-end tests).
build_packages=(gcc pkg-config meson ninja-build libevent-dev libjansson-dev libxxhash-dev
    libyaml-dev liburing-dev libhiredis-dev libssl-dev libopenblas0-pthread libdnnl-dev
    ca-certificates curl git)
test_packages=(python3 python3-venv python3-pip redis-server redis-sentinel openssl)
e2e_packages=(nginx-light) # what kvblend is compared with
# What kvblend-bench proxy compares with (tools/bench-setup).
bench_packages=(nginx-light haproxy)

# Install whatever of the given packages is missing; quiet when nothing is.
need_packages() {
    local missing=() p
    if ! command -v dpkg-query >/dev/null; then
        say "not a Debian or Ubuntu machine: please have these installed: $*"
        return 0
    fi
    for p in "$@"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    local sudo=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || die "these packages are missing and neither root nor sudo is at hand: ${missing[*]}"
        sudo=(sudo)
    fi
    say "installing ${missing[*]}"
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        "${missing[@]}" >&2
}

# A virtual environment for downloads and tests, made once per user.
python_venv() {
    need_packages "${test_packages[@]}"
    local venv=$cache/venv
    if [ ! -x "$venv/bin/python" ]; then
        say "making a Python environment in $venv"
        mkdir -p "$cache"
        /usr/bin/python3 -m venv "$venv" >&2
    fi
    printf '%s\n' "$venv"
}

# Another one with the clients that users point at kvblend (openai, langchain, llama-index, LiteLLM):
# they want an older openai. Printed even where it could not be filled: their test skips then.
clients_venv() {
    local venv=$cache/clients-venv list=$root/tests/e2e/clients.txt
    if ! cmp -s "$list" "$venv/installed"; then
        say "installing the OpenAI clients of the end-to-end tests (about 600 MB)"
        /usr/bin/python3 -m venv "$venv" >&2
        if "$venv/bin/pip" install -q --disable-pip-version-check -r "$list" >&2; then
            cp "$list" "$venv/installed"
        else
            say "the clients cannot be installed here: their test will be skipped"
        fi
    fi
    printf '%s\n' "$venv"
}
