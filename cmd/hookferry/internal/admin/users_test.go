package admin

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

// claimed claims the due deliveries and returns them as "destination body".
func (s *server) claimed() (all []string) {
	s.t.Helper()
	for _, d := range claim(s.t, s.store, "crm", "shop/eu") {
		all = append(all, d.Destination+" "+string(d.Body))
	}
	slices.Sort(all)
	return all
}

func TestDeletionsReachDestinationsOfTheSources(t *testing.T) {
	tests := []struct {
		name string
		path string
		body any
		done int
		want map[string]int // number of deliveries by destination
	}{
		{"all sources", "", api.Deletion{Users: []string{"u1", "u2"}}, 2, map[string]int{"crm": 4, "shop/eu": 2}},
		{"one source", "", api.Deletion{Users: []string{"u1"}, Sources: []string{"web"}}, 1, map[string]int{"crm": 1, "shop/eu": 1}},
		{"lines", "", strings.NewReader("u1\r\n\nu2\nu3"), 3, map[string]int{"crm": 6, "shop/eu": 3}},
		{"lines of one source", "?source=app&id=d1", strings.NewReader("\xef\xbb\xbfu1\n"), 1, map[string]int{"crm": 1}},
		{"no lines", "", strings.NewReader(""), 0, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t, nil)
			last := s.work("POST", api.DeletionsPath+tt.path, tt.body)
			if last.Done != tt.done || last.Error != nil {
				t.Errorf("the last progress is %+v, want %d done", last, tt.done)
			}
			var got map[string]int
			for _, d := range s.claimed() {
				destination, body, _ := strings.Cut(d, " ")
				if got == nil {
					got = make(map[string]int)
				}
				got[destination]++
				if !strings.HasPrefix(body, `{"type":"delete","userId":"u`) {
					t.Errorf("the delivery has the body %s, want a delete of a user", body)
				}
			}
			diff(t, "deliveries", got, tt.want)
		})
	}
}

// TestDeletionWithTheSameIDIsOneRequest shows that a repeated deletion with the same id makes no
// new deliveries.
func TestDeletionWithTheSameIDIsOneRequest(t *testing.T) {
	s := newServer(t, nil)
	for range 2 {
		s.work("POST", api.DeletionsPath, api.Deletion{ID: "d1", Users: []string{"u1"}, Sources: []string{"app"}})
	}
	if got := s.claimed(); len(got) != 1 {
		t.Errorf("deliveries %q, want 1", got)
	}
}

func TestWrongUploadsAreRefused(t *testing.T) {
	s := newServer(t, nil)
	const members = "/api/v1/destinations/crm/audiences/vip/members"
	tests := []struct {
		name   string
		method string
		path   string
		body   string
		code   string
		text   string
	}{
		{"member too long", "PUT", members, "u1\n\n" + strings.Repeat("x", 256) + "\nu2\n", api.CodeBadRequest, "line 3: an id of 256 bytes"},
		{"user too long", "POST", api.DeletionsPath, strings.Repeat("x", 8193), api.CodeBadRequest, "line 1: an id of 8193 bytes"},
		{"line too long", "PUT", members, "u1\n" + strings.Repeat("x", maxLine+1), api.CodeTooLarge, "line 2"},
		{"no UTF-8", "PUT", members, "u1\n\xff\n", api.CodeBadRequest, "line 2 is not UTF-8"},
	}
	for _, tt := range tests {
		last := s.work(tt.method, tt.path, strings.NewReader(tt.body))
		if last.Error == nil || last.Error.Code != tt.code || !strings.Contains(last.Error.Message, tt.text) {
			t.Errorf("%s: last progress %+v, error %v, want the code %s and %q", tt.name, last, last.Error, tt.code, tt.text)
		}
	}
}

func TestAudiencesArePaged(t *testing.T) {
	s := newServer(t, nil)
	var want []string
	for _, destination := range []string{"crm", "shop/eu"} {
		for i := range 6 {
			name := fmt.Sprintf("Big Spenders %d", i)
			ask[api.Audience](s, 200, "POST", api.AudiencesPath, api.Audience{Destination: destination, Name: name})
			want = append(want, destination+": "+name)
		}
	}
	page := func(query string) (names []string, p api.Page[api.Audience]) {
		p = ask[api.Page[api.Audience]](s, 200, "GET", api.AudiencesPath+query, nil)
		for _, a := range p.Items {
			names = append(names, a.Destination+": "+a.Name)
		}
		return names, p
	}
	for _, limit := range []int{1, 4, 5, 6, 12} {
		var all []string
		for after := ""; len(all) == 0 || after != ""; {
			names, p := page(fmt.Sprintf("?limit=%d&after=%s", limit, url.QueryEscape(after)))
			if p.Total != 12 || len(names) == 0 || len(names) > limit {
				t.Fatalf("page after %q: %q of a total of %d, want 1 to %d of 12", after, names, p.Total, limit)
			}
			all, after = append(all, names...), p.After
		}
		diff(t, fmt.Sprintf("%d at a time", limit), all, want)
	}
	for _, tt := range []struct {
		query string
		want  []string
		total int
	}{
		{"?destination=shop/eu&limit=2", want[6:8], 6},
		{"?destination=shop/eu&limit=2&after=shop/eu/big_spenders_4", want[11:], 6},
		{"?q=sPENDERS%203", []string{want[3], want[9]}, 2},
		{"?q=_SPENDERS_3", []string{want[3], want[9]}, 2}, // the trait
		{"?q=crm", nil, 0},
		{"?destination=other", nil, 0},
	} {
		names, p := page(tt.query)
		diff(t, tt.query, names, tt.want)
		if p.Total != tt.total {
			t.Errorf("GET audiences%s: total %d, want %d", tt.query, p.Total, tt.total)
		}
	}
}

func TestAudiencesAreCreatedAndSynced(t *testing.T) {
	s := newServer(t, nil)
	const members = "/api/v1/destinations/shop%2Feu/audiences/VIP%20Users/members"
	if all := ask[api.Page[api.Audience]](s, 200, "GET", api.AudiencesPath, nil); all.Items == nil || len(all.Items) != 0 {
		t.Errorf("audiences of a new server: %+v, want an empty list", all)
	}
	for range 2 {
		got := ask[api.Audience](s, 200, "POST", api.AudiencesPath, api.Audience{Destination: "shop/eu", Name: "VIP Users"})
		diff(t, "created", got, api.Audience{Destination: "shop/eu", Name: "VIP Users", Trait: "vip_users", Generation: 1})
	}
	diff(t, "sync", s.work("PUT", members, strings.NewReader("u2\nu1\nu3\n")), api.Progress{Done: 3, Joined: 3, Ended: true})
	diff(t, "sync again", s.work("PUT", members, strings.NewReader("u1\nu4\nu3")), api.Progress{Done: 3, Joined: 1, Left: 1, Ended: true})
	resp, text := s.do(s.request("GET", members, nil))
	if string(text) != "u1\nu3\nu4\n" || resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), api.LinesType) {
		t.Errorf("GET members: %s, %s, %q, want 200 and the three members by line", resp.Status, resp.Header.Get("Content-Type"), text)
	}
	ask[api.Audience](s, 200, "POST", api.AudiencesPath, api.Audience{Destination: "crm", Name: "new"})
	diff(t, "audiences", ask[api.Page[api.Audience]](s, 200, "GET", api.AudiencesPath, nil), api.Page[api.Audience]{Total: 2, Items: []api.Audience{
		{Destination: "crm", Name: "new", Trait: "new", Generation: 1},
		{Destination: "shop/eu", Name: "VIP Users", Trait: "vip_users", Generation: 3},
	}})
	if _, text := s.do(s.request("GET", "/api/v1/destinations/crm/audiences/new/members", nil)); len(text) != 0 {
		t.Errorf("members of a new audience: %q, want none", text)
	}
	if got := s.claimed(); len(got) != 5 || !strings.Contains(got[0], `"vip_users":`) {
		t.Errorf("deliveries %q, want five: four users joined, and one left", got)
	}
}

// TestSyncRefusesToShrink shows that an empty list does not remove the members of a large audience,
// unless that is allowed.
func TestSyncRefusesToShrink(t *testing.T) {
	s := newServer(t, nil)
	const members = "/api/v1/destinations/crm/audiences/all/members"
	var list strings.Builder
	for i := range 20 {
		fmt.Fprintln(&list, "u", i)
	}
	diff(t, "sync", s.work("PUT", members, strings.NewReader(list.String())), api.Progress{Done: 20, Joined: 20, Ended: true})
	refused := &api.Error{Code: api.CodeConflict, Field: api.ParamAllowShrink,
		Message: "20 of 20 members would leave, which is more than half, so nobody has left; if the list is complete, sync with allowShrink (--allow-shrink)"}
	diff(t, "sync of nobody", s.work("PUT", members, strings.NewReader("")), api.Progress{Ended: true, Error: refused})
	diff(t, "allowed sync", s.work("PUT", members+"?allowShrink=true", strings.NewReader("")), api.Progress{Left: 20, Ended: true})
	if err := ask[api.Error](s, 400, "PUT", members+"?allowShrink=yes", nil); err.Field != api.ParamAllowShrink {
		t.Errorf("allowShrink=yes: %+v, want a bad request of this field", err)
	}
}

// TestCutSyncChangesNoMember shows that a list that breaks off removes no member, and that a part
// of an id does not become a member.
func TestCutSyncChangesNoMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		const members = "/api/v1/destinations/crm/audiences/vip/members"
		s.work("PUT", members, strings.NewReader("user-1\nuser-2\n"))
		// The client breaks off in the middle of a line.
		body, more := io.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		req := s.request("PUT", members, body).WithContext(ctx)
		var done sync.WaitGroup
		done.Go(func() {
			resp, err := s.client.Do(req)
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			if err == nil {
				t.Error("the cut request returned no error")
			}
		})
		if _, err := io.WriteString(more, "user-1\nuser-3"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s.handler.works.TryAcquire(maxWorks) {
			t.Error("no sync is running, want 1")
		}
		cancel()
		more.CloseWithError(io.ErrUnexpectedEOF)
		done.Wait()
		synctest.Wait()
		if !s.handler.works.TryAcquire(maxWorks) {
			t.Error("a sync is running, want none")
		}
		s.handler.works.Release(maxWorks)
		_, text := s.do(s.request("GET", members, nil))
		if string(text) != "user-1\nuser-2\n" {
			t.Errorf("members %q, want them unchanged", text)
		}
		diff(t, "sync again", s.work("PUT", members, strings.NewReader("user-1\nuser-33\n")), api.Progress{Done: 2, Joined: 1, Left: 1, Ended: true})
	})
}

// TestSyncStreamsItsProgress shows that a sync reports its progress while the client still sends
// the list. The server refuses a second sync of the same audience.
func TestSyncStreamsItsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		const members = "/api/v1/destinations/crm/audiences/vip/members"
		body, more := io.Pipe()
		resp := make(chan *http.Response, 1)
		go func() { // ends when the body ends
			r, err := s.client.Do(s.request("PUT", members, body))
			if err != nil {
				t.Error(err)
			}
			resp <- r
		}()
		io.WriteString(more, "u1\nu2\n")
		r := <-resp // the answer begins before the request ends
		defer r.Body.Close()
		next := lines[api.Progress](t, r.Body)
		for p, ok := next(); p.Done < 2; p, ok = next() {
			if !ok {
				t.Fatal("the stream ended before it reported 2 members")
			}
		}
		last := s.work("PUT", members, strings.NewReader("u9\n"))
		if last.Error == nil || last.Error.Code != api.CodeConflict {
			t.Errorf("a second sync at the same time: %+v, want a conflict", last)
		}
		io.WriteString(more, "u3\n")
		more.Close()
		var p api.Progress
		for ok := true; ok && !p.Ended; {
			p, ok = next()
		}
		diff(t, "last progress", p, api.Progress{Done: 3, Joined: 3, Ended: true})
	})
}

// TestCloseEndsLongWork shows that Close ends long work, and that the last line of the answer says
// so.
func TestCloseEndsLongWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		body, more := io.Pipe()
		defer more.Close()
		resp := make(chan *http.Response, 1)
		go func() {
			r, err := s.client.Do(s.request("PUT", "/api/v1/destinations/crm/audiences/vip/members", body))
			if err != nil {
				t.Error(err)
			}
			resp <- r
		}()
		users := strings.Repeat("user\n", 4096)
		io.WriteString(more, users)
		r := <-resp
		defer r.Body.Close()
		s.handler.Close()
		go func() { // runs until the pipe is closed; the server reads no more
			for {
				if _, err := io.WriteString(more, users); err != nil {
					return
				}
			}
		}()
		next := lines[api.Progress](t, r.Body)
		var p api.Progress
		for ok := true; ok && !p.Ended; {
			p, ok = next()
		}
		if p.Error == nil || p.Error.Code != api.CodeUnavailable {
			t.Errorf("the last progress is %+v, want the code unavailable", p)
		}
	})
}

func TestLongWorkIsBounded(t *testing.T) {
	s := newServer(t, nil)
	s.handler.works.TryAcquire(maxWorks)
	got := ask[api.Error](s, 503, "POST", api.RetryPath, `{"query":{}}`)
	if got.Code != api.CodeUnavailable {
		t.Errorf("a piece of work over the bound: error %+v, want the code %s", got, api.CodeUnavailable)
	}
	s.handler.tests.TryAcquire(maxTests)
	ask[api.Error](s, 503, "POST", api.TestPath, `{"destination":"crm"}`)
}

// TestLongUpload shows that the memory of an upload does not grow with its length. A million
// members, as in the soak, take as little memory as twenty thousand. The store of the test keeps
// nothing.
func TestLongUpload(t *testing.T) {
	members := 20_000
	if soakenv.On() {
		members = 1_000_000
	}
	counting := &countingRoster{}
	s := newServer(t, func(c *Config) {
		d := c.Settings().Destinations[0]
		f, err := webhook.New(webhook.Config{Store: counting, Destinations: []webhook.Destination{*d.Webhook}})
		if err != nil {
			t.Fatal(err)
		}
		c.Forwarder, c.Store, c.Roster = f, counting, counting
	})
	var most uint64
	body, more := io.Pipe()
	go func() {
		out := bufio.NewWriter(more)
		for i := range members {
			fmt.Fprintf(out, "user-%012d\n", i)
			if i%(members/5) == 0 {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc)
			}
		}
		out.Flush()
		more.Close()
	}()
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	last := s.work("PUT", "/api/v1/destinations/crm/audiences/vip/members", body)
	if last.Done != members || last.Joined != members || last.Error != nil {
		t.Errorf("the last progress is %+v, want %d done and joined", last, members)
	}
	if grown := int64(most) - int64(before.HeapAlloc); grown > 8<<20 {
		t.Errorf("the heap grew by %d bytes, want at most 8 MB", grown)
	}
}

// A countingRoster reports every user as a new member, and keeps none.
type countingRoster struct {
	webhook.Store
	audience.Roster
	record audience.Record
}

func (*countingRoster) Close() error   { return nil }
func (*countingRoster) Now() time.Time { return time.Now() }

func (*countingRoster) Put(_ context.Context, ps []store.Put, out []store.Result) error {
	for i := range ps {
		out[i] = store.Result{Stored: true}
	}
	return nil
}

func (r *countingRoster) UpdateAudience(_ context.Context, _ string, f func(*audience.Record, audience.Members) error) error {
	return f(&r.record, noMembers{})
}

// noMembers is an audience.Members without members.
type noMembers struct{}

func (noMembers) Get(users []string) (all []audience.Member, _ error) {
	for _, user := range users {
		all = append(all, audience.Member{User: user})
	}
	return all, nil
}
func (noMembers) Next(string, int) ([]audience.Member, error) { return nil, nil }
func (noMembers) Set([]string, uint64) error                  { return nil }
