package server

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
)

func TestSourcesKeepCountsAndLimitsOnReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := func(keys ...signature.Secret) []signature.Secret { return keys }
		var s sources
		use := func(all ...config.Source) { s.use(&config.Settings{Sources: all}) }
		find := func(key string) *collector.Source {
			t.Helper()
			source, err := s.find(t.Context(), key)
			if errors.Is(err, collector.ErrUnknownKey) {
				return nil
			}
			if err != nil {
				t.Fatal(err)
			}
			return &source
		}

		use(config.Source{Name: "a", Keys: keys("k1", "k2"), Rate: 2.5, Destinations: []string{"d"}, Filter: webhook.Filter{Include: []string{"page"}}},
			config.Source{Name: "off", Disabled: true, Keys: keys("k3")},
			config.Source{Name: "gone", Keys: keys("k4")})
		one := find("k1")
		if one == nil || one.Name != "a" || one.Limit == nil || !slices.Equal(one.Destinations, []string{"d"}) {
			t.Fatalf("find(k1) = %+v, want the source a with a limit and the destination d", one)
		}
		if !one.Filter(event.Event{Type: "page"}) || one.Filter(event.Event{Type: "track"}) {
			t.Error("the filter of the source a does not take pages only")
		}
		if two := find("k2"); two == nil || two.Limit != one.Limit {
			t.Error("the keys of a source do not share its limit")
		}
		if find("k3") != nil {
			t.Error("find knows the key of a disabled source")
		}
		if find("k4") == nil || find("k5") != nil {
			t.Error("find(k4) or find(k5) is wrong, want that it knows k4 and not k5")
		}
		s.answered(&collector.Answered{Source: "a", Status: 200, Accepted: 3, Filtered: 1, BadTimes: 2, Rejected: 2})
		s.answered(&collector.Answered{Source: "a", Status: 429})
		s.answered(&collector.Answered{Source: "gone", Status: 503})
		s.answered(&collector.Answered{Status: 401})
		at := time.Now().UTC()
		time.Sleep(time.Second)

		// With new settings, a source with the same name keeps its counts. It also keeps its
		// limit if the rate did not change.
		use(config.Source{Name: "a", Keys: keys("k1"), Rate: 2.5}, config.Source{Name: "new", Keys: keys("k2", "k6"), Rate: 1, Burst: 7, Destinations: strings.Split("abcdefghijkl", "")})
		if again := find("k1"); again == nil || again.Limit != one.Limit {
			t.Error("the source a has a new limit, want the old one, as its rate did not change")
		}
		if two := find("k2"); two == nil || two.Name != "new" {
			t.Error("find(k2) does not return the source new")
		}
		if find("k4") != nil {
			t.Error("find knows the key of a removed source")
		}
		s.answered(&collector.Answered{Source: "gone", Status: 200, Accepted: 1}) // this request began before the new settings
		s.answered(&collector.Answered{Source: "a", Status: 400, Rejected: 1})

		list := s.list()
		slices.SortFunc(list, func(a, b api.Source) int { return strings.Compare(a.Name, b.Name) })
		want := []api.Source{
			{Name: "a", Keys: 1, Enabled: true, Destinations: []string{}, Rate: 2.5, Burst: 3, Accepted: 3, Rejected: 3, Limited: 1, Filtered: 1, BadTimes: 2, Last: at},
			{Name: "new", Keys: 2, Enabled: true, Destinations: strings.Split("abcdefghij", ""), DestinationCount: 12, Rate: 1, Burst: 7},
		}
		if diff := cmp.Diff(want, list); diff != "" {
			t.Errorf("list (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(api.Calls{Requests: 6, Accepted: 4, Rejected: 3, Limited: 1, Unknown: 1, Failed: 1}, s.calls()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}

		use(config.Source{Name: "a", Keys: keys("k1"), Rate: 3})
		if find("k1").Limit == one.Limit {
			t.Error("the source a has its old limit, want a new one for another rate")
		}
	})
}

func TestUnknownKeysAreAWarningAtMostOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := sources{logger: slog.New(slog.NewTextHandler(&log, nil))}
		s.use(new(config.Settings))
		refuse := func(times int, want ...string) {
			t.Helper()
			log.Reset()
			for range times {
				s.answered(&collector.Answered{Status: 401})
			}
			if n := strings.Count(log.String(), "level=WARN"); n != len(want) || n > 0 && !strings.Contains(log.String(), want[0]+"\n") {
				t.Errorf("log %q, want the warnings %q", log.String(), want)
			}
		}
		refuse(3, "requests=1")
		time.Sleep(time.Minute - 1)
		refuse(4)
		time.Sleep(time.Nanosecond)
		refuse(1, "requests=7")
		s.answered(&collector.Answered{Status: 200})
		time.Sleep(time.Hour)
		refuse(1, "requests=1")
	})
}
