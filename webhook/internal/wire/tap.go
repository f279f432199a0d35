package wire

import (
	"net"
	"syscall"
)

// A tap is the connection under a TLS connection. TLS reads ahead and buffers, so the
// socket alone does not show whether the peer has sent anything. It takes a read
// through TLS that does not wait, and to know where TLS records end.
type tap struct {
	net.Conn
	raw  syscall.RawConn // of Conn; nil if there is none, or none that is known
	poll poll

	looking bool    // Read does not wait
	parting bool    // Write does not
	header  [5]byte // of the record that is being read (RFC 8446, section 5.1)
	have    int     // bytes of header
	left    int     // bytes of the record after its header
	one     [1]byte
}

func newTap(nc net.Conn) *tap { return &tap{Conn: nc, raw: rawConn(nc)} }

// Read is for TLS.
func (t *tap) Read(p []byte) (n int, err error) {
	switch {
	case !t.looking:
		n, err = t.Conn.Read(p)
	case t.raw == nil || !canProbe:
		return 0, errSilent
	default:
		n, err = t.poll.read(t.raw, p)
	}
	t.took(p[:n])
	return n, err
}

// Write is for TLS, whose Close would wait for five seconds.
func (t *tap) Write(p []byte) (int, error) {
	if t.parting {
		return writeOnce(t.raw, p)
	}
	return t.Conn.Write(p)
}

// took notes that p was read.
func (t *tap) took(p []byte) {
	for len(p) > 0 {
		if t.left > 0 {
			n := min(t.left, len(p))
			t.left -= n
			p = p[n:]
			continue
		}
		n := copy(t.header[t.have:], p)
		t.have += n
		p = p[n:]
		if t.have == len(t.header) {
			t.have, t.left = 0, int(t.header[3])<<8|int(t.header[4])
		}
	}
}

// silent reports whether tc, which is over t, is open and has nothing to say,
// as far as that can be told without waiting. What TLS has to say to itself,
// such as a session ticket, is taken in.
func (t *tap) silent(tc net.Conn) bool {
	t.looking = true
	_, err := tc.Read(t.one[:])
	t.looking = false
	return err == errSilent && t.have == 0 && t.left == 0
}

// errSilent says that there is nothing to read yet. After an error that is
// temporary, TLS goes on.
var errSilent error = silentError{}

type silentError struct{}

func (silentError) Error() string   { return "nothing to read" }
func (silentError) Timeout() bool   { return true }
func (silentError) Temporary() bool { return true }
