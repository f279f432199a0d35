package boltqueue

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// However many commits fail, the log has a line a second.
func TestFailuresDoNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		q := &Queue{path: "queue.db", config: Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
		for range 1000 {
			q.complain(errors.New("disk full"))
		}
		time.Sleep(time.Second) // of the bubble
		q.complain(errors.New("disk full"))
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 2 || !strings.HasSuffix(lines[0], "unlogged=0") || !strings.HasSuffix(lines[1], "unlogged=999") {
			t.Errorf("the log is\n%s\nwant a line at once, and one that stands for 999 more", log.String())
		}
	})
}
