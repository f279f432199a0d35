package webhooktest

import "net"

// A loopbackListener returns only the connections that the receiver's script
// accepts. For the others it does the connection step; see Refuse.
type loopbackListener struct {
	net.Listener
	receiver *Receiver
}

func (l *loopbackListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		step, faulty := l.receiver.take(func(f fault) bool { return f != faultNone })
		if !faulty {
			return c, nil
		}
		l.receiver.afflict(step, c)
	}
}
