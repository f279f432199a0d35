package webhook

import "sync/atomic"

// reasons is the closed list, in the order of counters.
var reasons = [...]Reason{
	ReasonTimeout, ReasonDNS, ReasonConnection, ReasonProtocol, ReasonCertificate, ReasonAddress,
	ReasonRedirect, ReasonThrottled, ReasonRefused, ReasonServerError, ReasonExpired,
}

// Stats counts what a Forwarder has done since New, each thing once it is
// stored.
type Stats struct {
	// Accepted counts the deliveries stored.
	Accepted int64
	// Duplicates counts those left out because the store had seen them.
	Duplicates int64
	// Off counts the events not forwarded because their integrations switch
	// Webhooks off.
	Off int64
	// Delivered counts the deliveries that an endpoint took.
	Delivered int64
	// Retried counts the attempts that failed and are to be repeated.
	Retried int64
	// Resent counts the requests made twice within an attempt, because a
	// connection that was kept ended without a byte of an answer. The receiver
	// may have got both.
	Resent int64
	// Dead counts the deliveries given up, by reason. Only reasons that
	// occurred are in it.
	Dead map[Reason]int64
	// Forgotten counts the dead letters that were discarded to keep the bounds
	// of the Config.
	Forgotten Forgotten
}

type counters struct {
	accepted, duplicates, off, delivered, retried atomic.Int64

	dead [len(reasons)]atomic.Int64

	forgottenAge, forgottenSize atomic.Int64
}

func (c *counters) add(t *tally) {
	c.delivered.Add(int64(t.delivered))
	c.retried.Add(int64(t.retried))
	for i, n := range t.dead {
		if n > 0 {
			c.dead[i].Add(int64(n))
		}
	}
}

// Stats returns the counts. It may be called at any time.
func (f *Forwarder) Stats() Stats {
	c := &f.count
	s := Stats{
		Accepted:   c.accepted.Load(),
		Duplicates: c.duplicates.Load(),
		Off:        c.off.Load(),
		Delivered:  c.delivered.Load(),
		Retried:    c.retried.Load(),
		Resent:     f.client.Resent(),
		Dead:       make(map[Reason]int64),
		Forgotten:  Forgotten{Age: c.forgottenAge.Load(), Size: c.forgottenSize.Load()},
	}
	for i, r := range reasons {
		if n := c.dead[i].Load(); n > 0 {
			s.Dead[r] = n
		}
	}
	return s
}
