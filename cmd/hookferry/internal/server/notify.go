package server

import (
	"net"
	"strconv"
	"time"
)

// A notifier tells the service manager how the server is, by systemd's protocol
// (sd_notify(3)): datagrams to the socket that it names in the environment.
// Without one it does nothing.
type notifier struct {
	socket string
	pid    string
	beat   time.Duration // between signs of life; 0: none are wanted
}

func newNotifier(getenv func(string) string, pid int) *notifier {
	n := &notifier{socket: getenv("NOTIFY_SOCKET"), pid: strconv.Itoa(pid)}
	if usec, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64); err == nil && usec > 0 {
		// Meant for another process, if it names one.
		if of := getenv("WATCHDOG_PID"); of == "" || of == n.pid {
			n.beat = max(time.Duration(usec)*time.Microsecond/2, time.Millisecond)
		}
	}
	return n
}

// send sends a state. That nobody listens is no reason to stop.
func (n *notifier) send(state string) {
	if n.socket == "" {
		return
	}
	name := n.socket
	if name[0] == '@' { // the abstract name space
		name = "\x00" + name[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	if err := c.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return
	}
	_, _ = c.Write([]byte(state))
}

func (n *notifier) ready()    { n.send("READY=1\nMAINPID=" + n.pid) }
func (n *notifier) stopping() { n.send("STOPPING=1") }
func (n *notifier) alive()    { n.send("WATCHDOG=1") }

// reloading begins a reload, which ready ends.
func (n *notifier) reloading() {
	if now, ok := monotonic(); ok {
		n.send("RELOADING=1\nMONOTONIC_USEC=" + strconv.FormatInt(now.Microseconds(), 10))
	}
}
