package webhooktest

import "net"

// A loopbackListener hands out the connections that the receiver's script lets
// through.
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
