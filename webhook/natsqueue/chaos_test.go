package natsqueue

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook/internal/chaos"
)

// chaosPartitions are so many that each of three processes gets some of them: with half as many
// one in two hundred tests has a process that gets none.
const chaosPartitions = 32

// openChaos opens the store of TestChaos.
func openChaos(ctx context.Context, url string) (chaos.Queue, func() string, func(), error) {
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return nil, nil, nil, err
	}
	q, err := Open(ctx, nc, &Config{Stream: "CHAOS", Claim: 3 * time.Second, Partitions: chaosPartitions})
	if err != nil {
		nc.Close()
		return nil, nil, nil, err
	}
	return q, q.life, nc.Close, nil
}

// life tells when claims of q may have expired in between: a sign of life was missed.
func (q *Queue) life() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.steady.String()
}

// Processes are killed, and the server is.
func TestChaos(t *testing.T) {
	s, err := startServer()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	chaos.Run(t, chaos.Store{Addresses: []string{s.url()}, Open: openChaos, Away: func(wait func()) error {
		s.down()
		wait()
		return s.up()
	}})
}

// Each process has a server of its own, and the one that leads the stream is parted from
// the two others, until these have a leader and own all partitions. What was sent
// meanwhile arrives afterwards.
func TestParted(t *testing.T) {
	c := startCluster(t, 3)
	store := chaos.Store{Open: openChaos}
	for _, s := range c {
		store.Addresses = append(store.Addresses, s.url())
	}
	store.Away = func(func()) error {
		parted := c.leader(t, "CHAOS")
		other := c[0]
		if other == parted {
			other = c[1]
		}
		nc := connect(t, other.url())
		until(t, startTime, "each process owns something", func() bool { return owners(nc) == 3 })
		began := time.Now()
		heal := parted.partition()
		defer heal()
		// Until its silence is noticed, some of what the others read is asked of the
		// parted server, and asked again.
		until(t, 2*time.Minute, "the two others own all", func() bool { return owners(nc) == 2 })
		t.Logf("taken over after %v", time.Since(began))
		return nil
	}
	chaos.Run(t, store)
}

// owners returns how many processes own partitions of the stream of openChaos, or 0 if
// its leader does not answer. A direct get may be led to the server that is parted.
func owners(nc *nats.Conn) int {
	all := make(map[string]bool)
	for n := range chaosPartitions {
		ask := fmt.Appendf(nil, `{"last_by_subj":%q}`, subjects{"CHAOS"}.partition(n)+kindOwner)
		m, err := nc.Request("$JS.API.STREAM.MSG.GET.CHAOS", ask, time.Second)
		if err != nil {
			return 0
		}
		var got struct {
			Message struct{ Data []byte }
		}
		if err := json.Unmarshal(m.Data, &got); err != nil {
			return 0
		}
		d, err := parseDeed(got.Message.Data)
		if err != nil {
			return 0
		}
		all[d.Node] = true
	}
	return len(all)
}
