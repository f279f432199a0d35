//go:build unix

package pgqueue

import (
	"testing"

	"github.com/hookferry/analytics/webhook"
)

// If the answers to a claim and to a settlement were lost, the node gives back the chunk that it has
// claimed. It does not store the outcomes a second time.
func TestLostAnswers(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir())}
	q, other := openWith(t, c), openWith(t, c)
	defer q.Close()
	defer other.Close()
	ctx := t.Context()
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := q.pool.Exec(ctx, q.in(sql), args...); err != nil {
			t.Fatal(err)
		}
	}
	putAll(t, q, deliveries("crm", 0, 10)...)
	held := fetchUntil(t, q, 10, "crm")
	putAll(t, other, deliveries("mail", 0, 10)...)
	exec(`UPDATE S.chunk SET node = $1 WHERE destination = 'mail'`, q.nodeNow())
	exec(`SELECT S.settle($1, ARRAY(SELECT id FROM S.chunk WHERE destination = 'crm'), '{10}', '{6}', '{1111000000}')`, q.nodeNow())

	settleAll(t, q, webhook.Retry, held[:5]) // the first four were settled
	wantWaiting(t, q, 16)
	settleAll(t, q, webhook.Return, held[3:7])
	settleAll(t, q, webhook.Done, held[7:])
	got := fetchUntil(t, q, 13, "crm", "mail")
	settleAll(t, q, webhook.Done, got)
	wantWaiting(t, q, 0)
}
