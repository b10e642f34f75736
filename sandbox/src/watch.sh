# Starts a program that ends when the process that started it ends.
#
#   sh -c "$(cat watch.sh)" watch SIGNAL GRACE REMOVE PROGRAM ARGS…
#
# This shell forks a watcher and then *becomes* the program, so that the program is the starter's
# own child: with its own process id, exit status and signals. The watcher is the program's child
# and reads a pipe whose other end only the starter holds. End of file means that the starter is
# gone, or that it has seen the program end and let go of the pipe.
#
#   SIGNAL  number of the signal that ends the program
#   GRACE   tenths of a second after which it gets SIGKILL
#   REMOVE  folder to remove once the program is gone, or nothing
signal=$1 grace=$2 remove=$3 program=$$
shift 3
exec 3<&0 </dev/null
(
    # What is sent to the program's whole group must not end its watcher.
    trap '' HUP INT QUIT TERM
    while read -r _ <&3; do :; done

    # Is the program still there? A process whose parent ends gets another parent at once, so this
    # cannot mistake a later process with the same id for the program.
    there() {
        while read -r key value; do
            [ "$key" = PPid: ] && { [ "$value" = "$program" ]; return; }
        done </proc/self/status
        return 1
    }

    there || exit 0
    kill -"$signal" "$program"
    kill -CONT "$program" # a paused program sees nothing but SIGKILL
    while there; do
        [ "$grace" -gt 0 ] || kill -KILL "$program"
        grace=$((grace - 1))
        sleep 0.1
    done
    [ -z "$remove" ] || rm -rf -- "$remove"
) &
exec "$@" 3<&-
