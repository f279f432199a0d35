package wire

import (
	"crypto/tls"
	"net"
	"syscall"
	"time"
)

// A peekConn wraps the socket of a connection, below TLS. It can read without blocking, to
// find out whether an idle connection has ended or has unread bytes. TLS buffers the
// bytes that it reads, so a peekConn also tracks where TLS records end.
type peekConn struct {
	net.Conn
	raw    syscall.RawConn // nil unless Conn is a socket of the net package
	probe  probe
	secure bool // the connection uses TLS over this connection

	// request is what the next Read writes first, if it is not nil. Read then sets unsent, or the
	// error of the write, werr.
	request []byte
	unsent  bool
	werr    error

	looking bool    // Read does not block
	closing bool    // writes do not wait for room in the socket
	header  [5]byte // header of the TLS record that is being read (RFC 8446, section 5.1)
	have    int     // bytes of header that were read
	left    int     // bytes of the record that are still to be read
	one     [1]byte
}

// newPeekConn returns a peekConn over nc. It probes only sockets of the net package: another type of
// connection may transform the bytes that it reads from its socket.
func newPeekConn(nc net.Conn, secure bool) *peekConn {
	t := &peekConn{Conn: nc, secure: secure}
	switch s := nc.(type) {
	case *net.TCPConn, *net.UnixConn:
		t.raw, _ = s.(syscall.Conn).SyscallConn()
	}
	return t
}

// Read reads like the wrapped connection, but does not block while t.looking is set.
func (t *peekConn) Read(p []byte) (n int, err error) {
	switch {
	case t.request != nil:
		return t.turnAround(p)
	case !t.looking:
		n, err = t.Conn.Read(p)
	case !t.probes():
		return 0, errSilent
	default:
		n, err = t.probe.tryRead(t.raw, p)
	}
	if t.secure {
		t.follow(p[:n])
	}
	return n, err
}

// probes reports whether the peekConn can read without blocking.
func (t *peekConn) probes() bool { return t.raw != nil && canProbe }

// turnAround is Read while t.request is set. It does what look, Write and Read do, with less work.
func (t *peekConn) turnAround(p []byte) (n int, err error) {
	request := t.request
	n, written, err := t.probe.turnAround(t.raw, request, p)
	t.request, t.unsent, t.werr = nil, written < 0, nil
	switch {
	case t.unsent && err == nil:
		return 0, errEarly
	case !t.unsent && written < len(request): // the buffer of the socket is full, or the write failed
		_, t.werr = t.Conn.Write(request[written:])
		return t.Conn.Read(p)
	}
	return n, err
}

// Write writes like the wrapped connection. During a close it does not wait for a receiver that does
// not read.
func (t *peekConn) Write(p []byte) (int, error) {
	if t.closing && canProbe {
		return tryWrite(t.raw, p)
	}
	return t.Conn.Write(p)
}

// closingTime is how long a close may block where sockets cannot be written without blocking.
const closingTime = time.Millisecond

// SetWriteDeadline shortens the five seconds that crypto/tls allows during a close.
func (t *peekConn) SetWriteDeadline(at time.Time) error {
	if last := time.Now().Add(closingTime); t.closing && at.After(last) {
		at = last
	}
	return t.Conn.SetWriteDeadline(at)
}

// follow tracks the TLS records in p, which was just read.
func (t *peekConn) follow(p []byte) {
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

// look returns nil if the connection is open and the receiver has sent nothing, as far as
// a read without blocking can tell. nc is t, or TLS over t. TLS handles its own messages,
// such as session tickets.
func (t *peekConn) look(nc net.Conn) error {
	t.looking = true
	_, err := nc.Read(t.one[:])
	t.looking = false
	switch {
	case err == nil || err == errSilent && (t.have > 0 || t.left > 0):
		return errEarly
	case err == errSilent:
		return nil
	}
	return err
}

// close closes nc, which is t or TLS over t. It does not wait for the receiver.
func (t *peekConn) close(nc net.Conn) {
	if tc, ok := nc.(*tls.Conn); ok && t.raw != nil {
		t.closing = true
		tc.Close() // sends close_notify
		return
	}
	t.Conn.Close()
}

// errSilent says that there is nothing to read. It is temporary, so that TLS can continue after it.
var errSilent error = silentError{}

type silentError struct{}

func (silentError) Error() string   { return "nothing to read" }
func (silentError) Timeout() bool   { return true }
func (silentError) Temporary() bool { return true }
