# Stages that end in time, for tests/gpu/run.sh: each has a share of all the time, which those before it cannot take from it, and what it
# prints is in the log as it is printed. $out/summary receives a verdict a line as it is reached. Sourced with `seconds`, `out` and `log` set,
# and with
#   plan=(NAME SECONDS NAME SECONDS ...)      the stages in their order; the seconds should add up to no more than `seconds`
passed=0
failed=0
cut=0
skipped=0
grace=6 # seconds in which a stage that has reached its limit is ended

say() {
    printf '%s\n' "$*" | tee -a "$log"
}

skip() { # WHY
    skipped=$((skipped + 1))
    echo "skipped  $*" >>"$out/summary"
}

fail() { # WHY
    failed=$((failed + 1))
    echo "FAILED   $*" >>"$out/summary"
}

cut_off() { # WHAT
    cut=$((cut + 1))
    echo "CUT OFF  $*" >>"$out/summary"
}

# planned NAME: prints the seconds of the stages behind it, in proportion where there is less time than was planned.
planned() {
    local i found=0 behind=0 total=0
    for ((i = 0; i < ${#plan[@]}; i += 2)); do
        total=$((total + plan[i + 1]))
        [ "$found" -eq 0 ] || behind=$((behind + plan[i + 1]))
        [ "${plan[i]}" != "$1" ] || found=1
    done
    [ "$found" -eq 1 ] || echo "the stage $1 is not planned" >&2
    [ "$total" -le $((seconds - grace)) ] || behind=$((behind * (seconds - grace) / total))
    echo "$behind"
}

# bounded SECONDS COMMAND...: its status; 124 when it was ended. What cannot be ended, as in a driver that hangs, is left behind.
bounded() {
    local pid end=$((SECONDS + $1 + grace))
    timeout --kill-after=$((grace - 2)) "$@" &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        [ "$SECONDS" -lt "$end" ] || return 124
        sleep 0.1
    done
    wait "$pid"
    case $? in
    137) return 124 ;;
    *) return $? ;;
    esac
}

# stage NAME [--needs PATTERN] [--never PATTERN] COMMAND...: @seconds among the words is what it may take. It fails, too, when what it
# printed lacks a line with the one pattern or has one with the other. Only the end of that is shown, more of it when it failed.
stage() {
    local name=$1 needs='' never='' begin=$SECONDS limit from code lines=1 why shown
    shift
    while :; do
        case $1 in
        --needs) needs=$2 ;;
        --never) never=$2 ;;
        *) break ;;
        esac
        shift 2
    done
    limit=$((seconds - SECONDS - $(planned "$name") - grace))
    if [ "$limit" -lt 2 ]; then
        cut_off "$name (no time was left)"
        return 1
    fi
    printf '\n==== %s, for at most %s s: %s\n' "$name" "$limit" "$*" >>"$log"
    from=$(($(stat -c %s "$log") + 1))
    bounded "$limit" "${@//@seconds/$((limit - 4))}" >>"$log" 2>&1
    code=$?
    why=$code
    if [ "$code" -eq 0 ] && [ -n "$needs" ] && ! tail -c "+$from" "$log" | grep -q -e "$needs"; then
        code=1 why="it does not say: $needs"
    fi
    if [ "$code" -eq 0 ] && [ -n "$never" ] && shown=$(tail -c "+$from" "$log" | grep -m 1 -e "$never"); then
        code=1 why="it says: ${shown:0:200}"
    fi
    [ "$code" -eq 0 ] || lines=25
    shown=$(tail -c "+$from" "$log" | tail -n "$lines" | cut -c -240)
    say "---- $name ($((SECONDS - begin)) s)"
    [ -z "$shown" ] || echo "$shown"
    if [ "$code" -eq 0 ]; then
        passed=$((passed + 1))
        echo "passed   $name ($((SECONDS - begin)) s)" >>"$out/summary"
    elif [ "$code" -eq 124 ]; then
        cut_off "$name (its limit of $limit s)"
    else
        fail "$name ($why)"
    fi
    return "$code"
}

# The last lines of all, and the end. A file that is too large to be fetched loses its middle.
finish() {
    local file
    say ""
    echo "$passed stages passed, $failed failed, $cut cut off, $skipped skipped, $SECONDS s" >>"$out/summary"
    say "$(cat "$out/summary")"
    for file in "$out"/*.log; do
        [ "$(stat -c %s "$file")" -gt 15000000 ] || continue
        { head -c 5000000 "$file" && printf '\n... cut ...\n' && tail -c 9000000 "$file"; } >"$file.cut" && mv "$file.cut" "$file"
    done
    exit $((failed + cut > 0))
}
