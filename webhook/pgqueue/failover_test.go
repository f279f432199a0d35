//go:build unix

package pgqueue

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
)

// A store goes on within seconds after each of its connections led to a server that could not be
// used: to one that is read-only, as after a failover, or that lacks the schema. Ready says so within
// seconds, although other nodes wait much longer.
func TestStoreLeavesServerThatCannotBeUsed(t *testing.T) {
	createVirtualDatabase(t)
	exec(t, pool(t), Config{Schema: "x"}, "CREATE ROLE failover LOGIN SUPERUSER")
	url := strings.Replace(address(t), "user=test", "user=failover", 1)
	for i, tt := range []struct{ name, begin, end string }{
		{"read-only", "ALTER ROLE failover SET default_transaction_read_only = on", "ALTER ROLE failover RESET default_transaction_read_only"},
		{"without the schema", "ALTER SCHEMA SCHEMA_ RENAME TO gone", "ALTER SCHEMA gone RENAME TO SCHEMA_"},
		{"shutting down", "SELECT 1", "SELECT 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			schema := schemaOf(t.Name())
			synctest.Test(t, func(t *testing.T) {
				q := openVirtual(t, url, pgx.QueryExecModeCacheStatement, Config{Schema: schema, Claim: time.Minute})
				defer q.Close()
				put := func() error {
					_, err := putSome(t.Context(), q, deliveries("crm", int(time.Now().UnixMicro()), 1)...)
					return err
				}
				// works returns after how many seconds puts and heartbeats work, at most 30.
				works := func() (after int) {
					for ; after < 30 && (put() != nil || q.Ready() != nil); after++ {
						time.Sleep(time.Second)
					}
					return after
				}
				if works() > 0 {
					t.Fatal("the store does not work at the beginning")
				}
				execVirtual(t, strings.ReplaceAll(tt.begin, "SCHEMA_", schema)+"; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'failover'")
				for range 20 {
					time.Sleep(time.Second)
					if err := put(); (err == nil || q.Ready() == nil) && i < 2 && time.Since(q.heartbeat.sent) > 6*time.Second {
						t.Errorf("after %v without a heartbeat: Put = %v, Ready = %v; want errors", time.Since(q.heartbeat.sent), err, q.Ready())
					}
				}
				execVirtual(t, strings.ReplaceAll(tt.end, "SCHEMA_", schema))
				if after := works(); after > 6 { // the second heartbeat, at the latest
					t.Errorf("the store works %d s after the server can be used again, want at most 6 s", after)
				}
				if err := q.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
