//go:build unix

package admin

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/internal/pgtest"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/pgqueue"
)

// BenchmarkStoredDestinations asks for a page of destinations that are in the store.
//
//	OWN=100000 go test -run '^$' -bench StoredDestinations -benchtime 10x ./internal/admin
func BenchmarkStoredDestinations(b *testing.B) {
	count, _ := strconv.Atoi(os.Getenv("OWN"))
	for _, of := range []struct {
		name string
		open func(b *testing.B) webhook.Store
	}{
		{"folder", func(b *testing.B) webhook.Store { return testkit.Must(filequeue.Open(b.TempDir(), filequeue.Config{})) }},
		{"postgres", func(b *testing.B) webhook.Store {
			pool := testkit.Must(pgxpool.New(b.Context(), pgtest.New(b, "fsync=off").URL()))
			b.Cleanup(pool.Close)
			return testkit.Must(pgqueue.Open(b.Context(), pool, pgqueue.Config{}))
		}},
	} {
		b.Run("store="+of.name, func(b *testing.B) { benchStored(b, of.open(b), max(count, 1000)) })
	}
}

func benchStored(b *testing.B, s webhook.Store, count int) {
	writer := testkit.Must(tenants.New(s, tenants.Config{}))
	var writers sync.WaitGroup
	for w := range 64 {
		writers.Go(func() {
			for i := w; i < count; i += 64 {
				in := tenants.Destination{ID: fmt.Sprintf("customer-%07d", i), Sources: []string{"web"}}
				in.Endpoints = []webhook.Endpoint{{URL: fmt.Sprintf("https://host%d.example/webhooks", i)}}
				if _, err := writer.Put(context.Background(), in, tenants.Secrets{Secret: "s"}, "ann"); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	served := newServerOf(b, s, inMemory(), func(*config.Settings) {}, nil)
	for _, query := range []string{"", "?sort=state", "?sort=state&limit=20", "?q=host999", "/customer-0000007"} {
		b.Run("query="+query, func(b *testing.B) {
			r := httptest.NewRequest("GET", api.DestinationsPath+query, nil)
			r.Host, r.RemoteAddr = "localhost", "127.0.0.1:1"
			b.ReportAllocs()
			for b.Loop() {
				w := httptest.NewRecorder()
				served.handler.ServeHTTP(w, r)
				if w.Code != 200 {
					b.Fatal(w.Body)
				}
			}
		})
	}
}
