package store

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A step that fails for a minute is a warning, one more each hour, and a line when it works again.
func TestUpkeepWarnsOfStepThatKeepsFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		u := NewUpkeep("store", slog.New(slog.NewTextHandler(&log, nil)))
		began, broken := time.Now(), errors.New("broken")
		check := func(warnings, recoveries int, failing bool) {
			t.Helper()
			text := log.String()
			if n := strings.Count(text, "level=WARN msg=\"store: a maintenance step keeps failing; deliveries go on, but it grows\" step=tidy"); n != warnings {
				t.Errorf("after %v: %d warnings, want %d:\n%s", time.Since(began), n, warnings, text)
			}
			if n := strings.Count(text, "works again"); n != recoveries {
				t.Errorf("after %v: %d lines of recovery, want %d:\n%s", time.Since(began), n, recoveries, text)
			}
			since, ok := u.Failing()["tidy"]
			if ok != failing || ok && !since.Equal(began) || len(u.Failing()) > 1 {
				t.Errorf("after %v: Failing() = %v, want tidy in it: %t", time.Since(began), u.Failing(), failing)
			}
		}
		run := func(err error) { u.Ran("tidy", "it grows", err) }
		for time.Since(began) < time.Minute {
			run(broken)
			u.Ran("other", "", broken)
			u.Ran("other", "", nil) // a step that fails now and then is no warning
			check(0, 0, false)
			time.Sleep(10 * time.Second)
		}
		run(broken)
		check(1, 0, true)
		time.Sleep(time.Hour - time.Second)
		run(broken)
		check(1, 0, true)
		time.Sleep(time.Second)
		run(broken)
		check(2, 0, true)
		run(nil)
		run(nil)
		check(2, 1, false)
		time.Sleep(time.Hour)
		run(broken)
		check(2, 1, false) // a new series
	})
}
