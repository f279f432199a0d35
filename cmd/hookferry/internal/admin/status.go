package admin

import (
	_ "embed"
	"encoding/json"
	"maps"
	"net/http"
	"runtime/metrics"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

func getStatus(q *request) (any, error) {
	settings, stats, node := q.handler.config.Settings(), q.handler.config.Forwarder.Stats(), q.handler.config.Node()
	count, err := q.handler.config.Store.Count(q.http.Context())
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(heap)
	var troubles []api.Trouble
	if q.handler.config.Troubles != nil {
		troubles = q.handler.config.Troubles()
	}
	for _, step := range slices.Sorted(maps.Keys(stats.Failing)) {
		troubles = append(troubles, api.Trouble{Kind: api.TroubleMaintenance, Step: step, At: stats.Failing[step].UTC()})
	}
	return api.Status{
		Version: node.Version, Node: node.Name, Started: node.Started, Now: time.Now().UTC(), Ready: node.Ready,
		Config: api.Config{File: settings.Path, Loaded: settings.Loaded.UTC(), Error: settings.Error, Restart: settings.Restart, History: settings.History.MaxAge != 0},
		Send:   q.handler.config.Send,
		Calls:  q.handler.config.Calls(),
		Totals: api.Totals{
			Accepted: stats.Accepted, Duplicates: stats.Duplicates, Off: stats.Off, Filtered: stats.Filtered,
			Delivered: stats.Delivered, Unkept: stats.Unkept, Retried: stats.Retried, Resent: stats.Resent, Dead: byReason(stats.Dead),
			Forgotten: stats.Forgotten.Age + stats.Forgotten.Size, Discarded: stats.Discarded,
			InFlight: stats.InFlight, Latency: stats.Latency,
		},
		Waiting: count.Waiting, Claimed: count.Claimed, Dead: count.Dead, Oldest: count.Oldest.UTC(),
		Errors: q.handler.config.Feed.Errors(""), Rates: q.handler.config.Feed.Rates(""), Memory: int64(heap[0].Value.Uint64()),
		Troubles: troubles, Unrouted: settings.Unrouted(),
	}, err
}

func byReason(counts map[webhook.Reason]int64) map[string]int64 {
	by := make(map[string]int64, len(counts))
	for reason, n := range counts {
		by[string(reason)] = n
	}
	return by
}

func listSources(q *request) (any, error) {
	part, after := strings.ToLower(q.param(api.ParamQuery)), q.param(api.ParamAfter)
	all := slices.DeleteFunc(q.handler.config.Sources(), func(s api.Source) bool { return !strings.Contains(strings.ToLower(s.Name), part) })
	slices.SortFunc(all, func(a, b api.Source) int { return strings.Compare(a.Name, b.Name) })
	list, err := page(q, behind(all, func(s api.Source) bool { return s.Name > after }),
		same, func(s *api.Source) string { return s.Name })
	list.Total = len(all)
	return list, err
}

// listNodes lists the servers that share the store, by the notes that their heartbeats carry. A note
// that cannot be decoded comes from a server of another version.
func listNodes(q *request) (any, error) {
	self := q.handler.config.Node()
	self.Self, self.Seen = true, time.Now().UTC()
	shared, ok := q.handler.config.Store.(store.Shared)
	if !ok {
		return api.Nodes{Nodes: []api.Node{self}}, nil
	}
	known, err := shared.Nodes(q.http.Context())
	if err != nil {
		return nil, err
	}
	answer := api.Nodes{Shared: true, Nodes: make([]api.Node, len(known))}
	for i := range known {
		n := &answer.Nodes[i]
		if known[i].Self {
			*n = self
			continue
		}
		if json.Unmarshal(known[i].Note, n) != nil {
			*n = api.Node{}
		}
		n.Name, n.Self, n.Seen = known[i].Name, false, known[i].Seen.UTC()
	}
	return answer, nil
}

// openAPI describes the API. Tests compare it with the routes, package api, and answers.
//
//go:embed openapi.json
var openAPI []byte

func getOpenAPI(q *request) (any, error) {
	q.send(http.StatusOK, openAPI)
	return nil, nil
}
