#!/usr/bin/env bash
# Sets ftui up in this checkout: an environment in .venv and a link named ftui in the user's path.
# It may be called again at any time, from anywhere: it does what is missing, repairs what is broken
# (an interrupted install, a moved checkout) and leaves alone what is there.
set -euo pipefail

ROOT=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
VENV=$ROOT/.venv
PYTHON=$VENV/bin/python
LOG=$VENV/install.log
STAMP=$VENV/ftui-installed        # written last: what the environment was made from
UNFINISHED=$VENV/ftui-unfinished  # there while the environment is being changed: what the stamp said before
CHILD=
LOGGED=
UV=
FETCHED=

usage() {
  cat <<'EOF'
usage: ./install.sh [options] [install | demo | test | doctor] [arguments]

  install   set up .venv and the link ftui (the default)
  demo      the same, then: ftui demo [arguments]
  doctor    the same, then: ftui doctor [arguments]
  test      the same with the developers' tools, then lint and pytest [arguments]

options, before that word:
  --python PATH   train with an existing environment that has torch (its folder or its python): it gets
                  this package, its torch is not touched. FTUI_PYTHON does the same. "own" goes back.
  --from RUN      rebuild the environment that a run recorded (run folder, run name, or requirements.txt)
  --help          this text

FTUI_BIN_DIR names the folder for the link (else /usr/local/bin for root, ~/.local/bin for others);
UV_TORCH_BACKEND torch's build (cpu, cu130, rocm7.2, ...) where it is not to be chosen by this machine's GPU.
EOF
}

say() { printf '%s\n' "$*"; }
note() { printf 'note: %s\n' "$*"; }

die() { # die WHAT FIX [EXIT CODE]
  printf 'install.sh: %s\n  fix: %s\n' "$1" "$2" >&2
  [[ -z $LOGGED ]] || printf '  log: %s\n' "$LOG" >&2
  exit "${3:-1}"
}

interrupted() {
  [[ -z $CHILD ]] || kill "$CHILD" 2>/dev/null || true
  printf '\ninstall.sh: interrupted; the next call goes on from here\n' >&2
  exit "$1"
}

# attempt WHAT COMMAND...: one line on the screen, the rest in the log; returns the command's code.
# In the background, because bash would answer a signal only after a download of gigabytes.
attempt() {
  local what=$1 code=0 start=$SECONDS
  shift
  [[ -t 1 ]] || say "  $what"
  LOGGED=yes
  printf '\n== %s\n' "$*" >>"$LOG"
  "$@" >>"$LOG" 2>&1 </dev/null 8>&- &
  CHILD=$!
  if [[ -t 1 ]]; then
    while kill -0 "$CHILD" 2>/dev/null; do
      printf '\r  %s (%d s)' "$what" $((SECONDS - start))
      sleep 0.3
    done
    printf '\n'
  fi
  wait "$CHILD" || code=$?
  CHILD=
  return "$code"
}

free_mb() { df -Pm "$1" 2>/dev/null | awk 'NR == 2 { free = $4 } END { print free == "" ? 999999 : free }'; }

# explain WHAT CODE: the end of the log in one sentence, and what to do about it.
explain() {
  local what="$1 failed" text
  text=$(awk '/^== / { text = "" } { text = text "\n" $0 } END { print text }' "$LOG" 2>/dev/null || true)
  has() { grep -qiE "$1" <<<"$text"; }
  last() { grep -iE "$1" <<<"$text" | tail -1; }
  if has 'no space left|disk quota' || (($(free_mb "$ROOT") < 20)); then
    local tmp=${TMPDIR:-/tmp}
    die "$what: the disk is full ($(free_mb "$ROOT") MB free in $ROOT, $(free_mb "$tmp") MB in $tmp)" \
      "free some space, or set TMPDIR to a larger disk, and call again"
  elif has CERTIFICATE_VERIFY_FAILED; then
    die "$what: the package index's certificate is not trusted" "check the clock, or set PIP_CERT and SSL_CERT_FILE"
  elif has "$NETWORK"; then
    die "$what: the package index cannot be reached" \
      "check the network, HTTPS_PROXY, or PIP_INDEX_URL where a mirror is used, and call again"
  elif has 'permission denied|read-only file system'; then
    die "$what: $(last 'permission denied|read-only file system')" "call as the owner of $ROOT, on a disk that can be written"
  elif (($2 == 137)); then
    die "$what: it was killed, most likely for want of memory" "free some memory and call again"
  elif has 'ResolutionImpossible|No solution found|No matching distribution|conflicting dependencies'; then
    die "$what: no versions fit together: $(last '^(error|  ×|the conflict)')" "see the log; a run is rebuilt with the checkout that made it"
  fi
  die "$what: $(last '^ *(error|fatal)' || tail -1 <<<"$text")" "see the log"
}
NETWORK='establish a new connection|name or service not known|name resolution|network is unreachable|connection refused'
NETWORK+='|connection reset|timed out|dns error|error sending request|ProxyError|tcp connect error|failed to fetch'

run() { attempt "$@" || explain "$1" $?; }

# system_packages NAME...: install them from the distribution where that needs no password.
system_packages() {
  local sudo=() apt
  if ((EUID != 0)); then
    sudo -n true 2>/dev/null || return 1
    sudo=(sudo -n)
  fi
  if command -v apt-get >/dev/null; then
    apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=60)
    attempt "updating the package lists" "${apt[@]}" update || true
    attempt "installing $*" "${apt[@]}" install -y --no-install-recommends "$@"
  elif command -v dnf >/dev/null; then
    attempt "installing $*" "${sudo[@]}" dnf install -y -q "$@"
  else
    return 1
  fi
}

# gpu_kind: nvidia, rocm or cpu. A driver whose nvidia-smi fails still counts: its user wants the GPU.
gpu_kind() {
  local libraries
  libraries=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null || true)
  if [[ $(nvidia-smi -L 2>/dev/null || true) == *GPU* || -e /proc/driver/nvidia/version || -e /dev/nvidiactl ||
    $libraries == *libnvidia-ml.so.1\ * ]]; then
    echo nvidia
  elif [[ -d /opt/rocm ]] || command -v amd-smi >/dev/null || command -v rocminfo >/dev/null; then
    echo rocm
  else
    echo cpu
  fi
}

# choose_python: sets BASE to the newest Python that works and suits; MISSING_VENV to one that lacks its venv module.
# Each is tried by running it: a shim of pyenv may be on the path and have nothing behind it.
choose_python() {
  local name path paths
  BASE='' MISSING_VENV=''
  for name in python3.14 python3.13 python3.12 python3.11 python3 python; do
    mapfile -t paths < <(type -aP "$name" 2>/dev/null)
    for path in "${paths[@]}"; do
      "$path" -I -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1 || continue
      if [[ -n $UV ]] || "$path" -I -c 'import venv, ensurepip' >/dev/null 2>&1; then
        BASE=$path
        return
      fi
      MISSING_VENV=${MISSING_VENV:-$path}
    done
  done
}

# fetch_uv: get uv through the pip of any Python 3, for what pip cannot do: a newer Python, another build of torch.
fetch_uv() {
  local python=$1 into=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/ftui/uv
  if [[ ! -x $into/bin/uv ]]; then
    "$python" -I -m pip --version >/dev/null 2>&1 || return 1
    attempt "fetching uv" "$python" -I -m pip install -q --target "$into" --upgrade uv || return 1
  fi
  "$into/bin/uv" --version >/dev/null 2>&1 && UV=$into/bin/uv FETCHED=yes
}

# Runs and lies where it was made: a copied or moved environment starts the old place's programs.
venv_runs() {
  "$PYTHON" -I -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)' >/dev/null 2>&1 &&
    grep -qF -e "$VENV" -e "$(readlink -f "$VENV")" "$VENV/bin/activate"
}

# packages QUESTION...: engine/packages.py answers, with .venv's Python.
packages() { "$PYTHON" -I "$ROOT/engine/packages.py" "$@"; }

make_venv() {
  if [[ -e $VENV/pyvenv.cfg || -e $UNFINISHED ]]; then
    say "  the environment in .venv is damaged, unfinished or was moved: making it anew"
  elif [[ -d $VENV && -n $(ls -A "$VENV" 2>/dev/null) ]]; then
    die "$VENV is there and is not a Python environment" "move it away and call again"
  fi
  # Its content, not the folder: .venv may be a link to a larger disk.
  [[ ! -d $VENV/ ]] || find "$VENV/" -mindepth 1 -delete
  begin_change
  choose_python
  if [[ -z $BASE && -z $UV && -n $MISSING_VENV ]]; then
    local package
    package=$("$MISSING_VENV" -I -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if system_packages "$package"; then choose_python; fi
    [[ -n $BASE ]] || die "$MISSING_VENV has no venv module" "apt-get install $package (as root), or install uv, and call again"
  fi
  if [[ -z $BASE && -z $UV ]]; then
    fetch_uv "$(type -P python3 || echo python3)" ||
      die "no Python from 3.11 to 3.14 was found" "install one (apt-get install python3 python3-venv), or uv, which brings its own, and call again"
  fi
  if [[ -n $UV ]]; then
    run "making .venv" "$UV" venv -q --allow-existing --python "${BASE:-3.12}" "$VENV"
  else
    run "making .venv" "$BASE" -I -m venv "$VENV"
  fi
}

begin_change() {
  if ! { mkdir -p "$VENV/" && printf '%s %s %s\n' "$old_inputs" "$old_extras" "$old_python" >"$UNFINISHED"; } 2>/dev/null; then
    die "cannot write to $VENV" "call as the owner of $ROOT, on a disk that is not full and can be written"
  fi
  rm -f "$STAMP"
}

# torch_flags: sets TORCH_FLAGS for uv. A CPU wheel in a folder that pip was told of is used, as pip would.
torch_flags() {
  local folder links=${UV_FIND_LINKS:-}
  TORCH_FLAGS=()
  [[ -z ${UV_TORCH_BACKEND:-} ]] || return 0
  for folder in ${links//,/ }; do
    if [[ $GPU == cpu ]] && compgen -G "$folder/torch-*.whl" >/dev/null; then return 0; fi
  done
  TORCH_FLAGS=(--torch-backend=auto)
}

# choose_installer: pip takes what its configuration gives; where that is not the build of torch for this machine, uv is fetched.
choose_installer() {
  local build
  [[ -z $UV && $EXTRAS == train* ]] || return 0
  run "looking for torch" "$PYTHON" -I -m pip install --dry-run --no-deps -c "$CONSTRAINTS" "${REQUIREMENTS[@]}" torch
  build=$(sed -n 's/^Would install\(.*\) torch-\([0-9][^ ]*\).*/\2/p' "$LOG" | tail -1)
  # Nothing to install: the one that is there will do.
  case $GPU:$build in *: | cpu:*+* | nvidia:*+cu* | rocm:*+rocm*) return 0 ;; esac
  fetch_uv "$PYTHON" || true
}

# install_packages: this package and all it needs, in one resolver call.
install_packages() {
  local what="installing torch and the other packages" code=0 target=".[$EXTRAS]"
  [[ $EXTRAS != light ]] || what="installing the packages" target=.
  cd "$ROOT"
  # editable_mode=compat: a path file; setuptools' import hook would cost each start 10 ms.
  if [[ -n $UV ]]; then
    torch_flags
    attempt "$what" "$UV" pip install --python "$PYTHON" --compile-bytecode "${TORCH_FLAGS[@]}" -c "$CONSTRAINTS" \
      --config-settings editable_mode=compat "${REQUIREMENTS[@]}" -e "$target" || code=$?
    ((code)) || return 0
    if [[ -z $FETCHED ]] || ! "$PYTHON" -I -m pip --version >/dev/null 2>&1; then explain "$what" "$code"; fi
    [[ $GPU != rocm ]] || die "torch's ROCm build could not be fetched" \
      "make an environment with torch for ROCm as its maker says, then: ./install.sh --python THAT_ENVIRONMENT"
    note "torch's build for this machine could not be fetched: taking the index's default (CUDA, several GB)"
  fi
  "$PYTHON" -I -m pip --version >/dev/null 2>&1 || run "adding pip" "$PYTHON" -I -m ensurepip
  run "$what" "$PYTHON" -I -m pip install --no-compile -c "$CONSTRAINTS" --config-settings editable_mode=compat \
    "${REQUIREMENTS[@]}" -e "$target"
  # Here and on all cores: else the first start pays for it, and every start where bytecode is not written.
  attempt "compiling" "$PYTHON" -I -m compileall -qq -j 0 "$VENV/lib" || true
}

# from_run RUN: sets REQUIREMENTS and CONSTRAINTS to what a run recorded.
from_run() {
  local run=$1 file count
  for file in "$run" {"$run","${FTUI_HOME:-/data/ft}/runs/$run","${HOME:-/root}/ftui/runs/$run"}/requirements.txt; do
    [[ ! -f $file ]] || break
  done
  [[ -f $file ]] || die "no requirements.txt of a run \"$run\" was found" "name the run's folder, or its requirements.txt" 2
  count=$(packages recorded "$file" "$VENV") || die "$file names no package versions" "name the requirements.txt that a run recorded" 2
  REQUIREMENTS=(-r "$VENV/requirements.txt")
  CONSTRAINTS=$VENV/constraints.txt
  say "  $count packages as in $file"
}

# must_suit PYTHON [FOLDER]: it can be used for training; what it lacks for that is written to FOLDER.
must_suit() {
  local reason
  reason=$(packages lacks "$@" 2>>"$LOG") || die "$1 ${reason%%$'\n'*}" "${reason#*$'\n'}" 2
}

# use_provided PYTHON: our package and what it lacks go into an environment with torch, whose torch stays as it is.
use_provided() {
  local python=$1 before pip
  must_suit "$python" "$VENV"
  before=$(cd / && "$python" -P "$ROOT/engine/packages.py" torch)
  if "$python" -m pip --version >/dev/null 2>&1; then
    pip=("$python" -m pip install)
  elif [[ -n $UV ]] || fetch_uv "$PYTHON"; then
    pip=("$UV" pip install --python "$python")
  else
    die "the environment of $python has no pip" "install pip there, or uv, and call again"
  fi
  [[ ! -s $VENV/wants.txt ]] || run "adding what $python lacks" "${pip[@]}" -c "$VENV/pins.txt" -r "$VENV/wants.txt"
  run "adding ftui to $python" "${pip[@]}" --no-deps --config-settings editable_mode=compat -e "$ROOT"
  [[ $(cd / && "$python" -P "$ROOT/engine/packages.py" torch) == "$before" ]] ||
    die "the torch of $python has changed" "reinstall torch ${before%% *} there; please report this"
  set_training_python "$python"
  say "  $python trains, with its own torch ${before%% *}"
}

# set_training_python PATH: the user's setting; empty for ftui's own environment.
set_training_python() {
  (cd / && "$PYTHON" -c 'import sys; from engine import settings; settings.save(python=sys.argv[1] or None)' "$1") >>"$LOG" 2>&1 ||
    die "the setting python could not be saved" "see the log; until then set FTUI_PYTHON=$1"
}

# link_ftui: sets COMMAND to what the user types.
link_ftui() {
  local folder=${HOME:-}/.local/bin link target=$VENV/bin/ftui old
  ((EUID != 0)) || folder=/usr/local/bin
  folder=${FTUI_BIN_DIR:-$folder}
  link=$folder/ftui COMMAND=$(printf '%q' "$target")
  if [[ -e $link && ! -L $link ]] || [[ -L $link && $(readlink "$link") != */.venv/bin/ftui ]]; then
    note "$link is another program and was left alone"
    return
  fi
  old=$(readlink "$link" || true)
  if [[ $old != "$target" ]]; then
    if ! { mkdir -p "$folder" && ln -sfn "$target" "$link"; } 2>/dev/null; then
      note "no link in $folder: it cannot be written"
      return
    fi
    [[ -z $old ]] || say "  $link pointed to $old; now it is this checkout"
  fi
  if [[ $(type -P ftui || true) == "$link" ]]; then
    COMMAND=ftui
  elif [[ :$PATH: != *:"$folder":* && $verb == install ]]; then
    note "$folder is not on your PATH: log in again if your shell adds it, else: export PATH=\"$folder:\$PATH\""
  fi
}

say_ready() {
  local gpu="no GPU was found, so training runs on the CPU"
  case $GPU in nvidia) gpu="NVIDIA driver found" ;; rocm) gpu="AMD ROCm found" ;; esac
  [[ -z $TRAINING ]] || gpu+="; training uses $TRAINING"
  say "ftui is ready: $("$PYTHON" -V), $gpu"
  printf '\nnext:\n  %s demo      fine-tune the built-in model, from data to result\n' "$COMMAND"
  printf '  %s           the terminal app\n  %s doctor    look the server over\n' "$COMMAND" "$COMMAND"
}

# run_tests: every check is run and shown; the closing line is pytest's.
run_tests() {
  local failed='' code=0 check workers
  cd "$ROOT"
  export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
  for check in "ruff check ." "ruff format --check ." mypy lint-imports; do
    # shellcheck disable=SC2086 # its words are its arguments
    "$VENV"/bin/$check || failed+=" ${check%% *}"
  done
  [[ -z $failed ]] || say "failed:$failed; the tests are run all the same, and this call fails"
  workers=$(env -u OMP_NUM_THREADS nproc) # which heeds that variable
  ((workers <= 4)) || workers=4 # most tests wait; the heavy ones load torch, a few GB each
  "$PYTHON" -m pytest -m "not soak" -n "$workers" --dist loadfile "$@" || code=$?
  [[ -z $failed ]] || ((code)) || code=1
  return "$code"
}

main() {
  local verb='' run='' asked=${FTUI_PYTHON:-} file inputs old_inputs='' old_extras='' old_python=''
  while (($#)); do
    case $1 in
      install | demo | doctor | test) verb=$1 && shift && break ;;
      --from | --python)
        (($# > 1)) || die "$1 needs a value" "see ./install.sh --help" 2
        if [[ $1 == --from ]]; then run=$2; else asked=$2; fi
        shift 2
        ;;
      -h | --help) usage && exit ;;
      *) die "unknown word: $1" "see ./install.sh --help" 2 ;;
    esac
  done
  verb=${verb:-install}
  [[ $verb != install || $# == 0 ]] || die "install takes no further words: $*" "options go before it; see ./install.sh --help" 2
  # What a command prints is its own: ours goes to stderr then.
  exec 8>&1
  [[ $verb == install ]] || exec 1>&2
  trap 'interrupted 130' INT
  trap 'interrupted 143' TERM HUP
  export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
  # What pip was told about where packages lie holds for uv too.
  [[ -n ${UV_FIND_LINKS:-} || -z ${PIP_FIND_LINKS:-} ]] || export UV_FIND_LINKS=${PIP_FIND_LINKS// /,}
  [[ -n ${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-} || -z ${PIP_INDEX_URL:-} ]] || export UV_DEFAULT_INDEX=$PIP_INDEX_URL

  # The lock is the checkout's folder. What is started holds it too: the pip of a killed install.sh works on alone.
  exec 9<"$ROOT"
  if command -v flock >/dev/null && ! flock -n 9; then
    say "another install is at work in $ROOT; waiting for it"
    flock 9 || true
  fi
  # An old uv knows no builds of torch.
  if [[ $(uv pip install --help 2>/dev/null || true) == *--torch-backend* ]]; then UV=$(type -P uv); fi
  GPU=$(gpu_kind)
  CONSTRAINTS=$ROOT/constraints.txt REQUIREMENTS=()
  for file in "$UNFINISHED" "$STAMP"; do
    [[ ! -r $file ]] || read -r old_inputs old_extras old_python <"$file" || true
  done
  [[ ! -d $asked ]] || asked=$asked/bin/python
  # Not resolved: the python of an environment is a link to the one it was made from.
  [[ -z $asked || $asked == own ]] || asked=$(realpath -sm -- "$(type -P "$asked" || echo "$asked")")
  TRAINING=${asked:-$old_python}
  [[ $TRAINING != own && $TRAINING != "$PYTHON" ]] || TRAINING=
  EXTRAS=train
  [[ -z $TRAINING ]] || EXTRAS=light
  [[ $verb != test ]] || EXTRAS=train,dev
  # More is there than is asked for: it stays.
  [[ $old_extras != train,dev && "$old_extras $EXTRAS" != "train light" ]] || EXTRAS=$old_extras
  inputs=$(cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt" | sha256sum | cut -c1-16)

  if [[ -n $run || "$inputs $EXTRAS $TRAINING" != "$old_inputs $old_extras $old_python" ]] || ! environment_works; then
    set_up
  fi
  command -v tmux >/dev/null ||
    note "tmux is missing, so a lost connection closes the terminal app (runs go on); to have it: apt-get install tmux"
  if [[ $verb == test ]]; then
    command -v gcc >/dev/null || system_packages gcc libc6-dev || note "gcc is missing: tests that need it will say so"
    run_tests "$@" 1>&8 8>&- 9<&-
    exit
  fi
  link_ftui
  [[ $verb == install ]] || exec "$VENV/bin/ftui" "$verb" "$@" 1>&8 8>&- 9<&-
  say_ready
}

environment_works() {
  local modules=tui,textual
  [[ $EXTRAS == light ]] || modules+=,torch,trl
  [[ -x $VENV/bin/ftui && ! -e $UNFINISHED ]] && venv_runs &&
    "$PYTHON" -I -c 'import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1].split(","))))' "$modules"
}

set_up() {
  local needs=3000
  say "setting up ftui in $ROOT (minutes, the first time)"
  rm -f "$LOG" 2>/dev/null || true
  if ! venv_runs || ! packages whole; then make_venv; fi
  [[ -z $run ]] || from_run "$run"
  [[ -z $TRAINING ]] || must_suit "$TRAINING"
  begin_change
  [[ $GPU == cpu ]] || needs=9000
  [[ $EXTRAS != light ]] || needs=500
  if [[ ! -x $VENV/bin/ftui ]] && (($(free_mb "$VENV/") < needs)); then
    die "the disk is too full: $(free_mb "$VENV/") MB free in $VENV, about $needs MB are needed" \
      "free some space, or make .venv a link to a folder on a larger disk, and call again"
  fi
  choose_installer
  install_packages
  if [[ -n $TRAINING ]]; then
    use_provided "$TRAINING"
  elif [[ -n $old_python && $verb != test ]]; then
    set_training_python ""
  fi
  command -v tmux >/dev/null || system_packages tmux || true
  printf '%s %s %s\n' "$inputs" "$EXTRAS" "$TRAINING" >"$STAMP"
  rm -f "$UNFINISHED"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then main "$@"; fi
