# Shared by the scripts here: sourced, never run, behind `set -euo pipefail`. --help prints a script's first comment.
if [[ ${1:-} =~ ^(-h|--help)$ ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/kvblend

test_jobs=$(($(nproc) + 2)) # many tests wait for time-outs

say() { if [ -t 2 ]; then printf '\033[1m==> %s\033[0m\n' "$*"; else printf '==> %s\n' "$*"; fi >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Debian/Ubuntu packages: to build (meson brings Python), and to test.
build_packages=(gcc pkg-config meson ninja-build libevent-dev libjansson-dev libxxhash-dev
    libutf8proc-dev libyaml-dev liburing-dev libhiredis-dev libssl-dev ca-certificates curl)
test_packages=(git python3 python3-venv python3-pip redis-server redis-sentinel openssl)
e2e_packages=(nginx-light) # what kvblend is compared with
# What kvblend-bench proxy loads and compares with (tools/bench-setup).
bench_packages=(wrk nginx-light haproxy)

# Run a command for its effect. What it says goes to the file $SETUP_LOG, whose end is shown if the command fails;
# without such a file, to the terminal.
quietly() {
    if [ -z "${SETUP_LOG:-}" ]; then
        "$@" >&2
        return
    fi
    printf '\n$ %s\n' "$*" >>"$SETUP_LOG"
    "$@" >>"$SETUP_LOG" 2>&1 || fail_with_log "this failed: $(cut -c 1-80 <<<"$*")"
}

fail_with_log() {
    tail -n 12 "$SETUP_LOG" | cut -c 1-200 >&2
    die "$1 (the whole log: $SETUP_LOG)"
}

need_tools() {
    local tool
    for tool in "$@"; do
        command -v "${tool%% *}" >/dev/null || die "$tool is missing: please install it"
    done
}

# need_space FOLDER MB: building on a full disk ends in errors that do not say so.
need_space() {
    local free
    free=$(df -Pm "$1" | awk 'NR == 2 { print $4 }')
    [ "$free" -ge "$2" ] || die "the disk of $1 is full: $free MB are free, $2 are needed"
}

# Where CUDA is, as tools/gpu-check looks for it.
cuda_root() {
    local nvcc
    nvcc=$(command -v nvcc || true)
    printf '%s\n' "${CUDA_HOME:-${nvcc:+$(dirname "$(dirname "$(readlink -f "$nvcc")")")}}" | sed 's|^$|/usr/local/cuda|'
}

# The architecture of GPU 0, as 90: nothing without a GPU, a compiler for it, or one that is too old.
gpu_arch() {
    local arch
    command -v nvidia-smi >/dev/null && [ -x "$(cuda_root)/bin/nvcc" ] || return 0
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader -i 0 2>/dev/null | tr -d ' .') || return 0
    [[ $arch =~ ^[0-9]+$ && $arch -ge 80 ]] && printf '%s\n' "$arch" || true
}

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
    quietly "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    quietly "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
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

# Others with what users point at kvblend, a list of exact versions each in tests/e2e: clients (openai, langchain,
# llama-index, LiteLLM, which want an older openai), frameworks, ui (what drives a browser). Printed even where it could not be filled: the test
# skips then.
packages_venv() {
    local venv=$cache/$1-venv list=$root/tests/e2e/$1.txt
    if ! cmp -s "$list" "$venv/installed"; then
        say "installing the $1 of the end-to-end tests (up to 600 MB)"
        /usr/bin/python3 -m venv "$venv" >&2
        if "$venv/bin/pip" install -q --disable-pip-version-check -r "$list" >&2; then
            cp "$list" "$venv/installed"
        else
            say "the $1 cannot be installed here: their test will be skipped"
        fi
    fi
    printf '%s\n' "$venv"
}
