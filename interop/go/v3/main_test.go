package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/analyticstest"
	_ "github.com/hookferry/analytics/analyticsv3" // keeps its requirements in go.mod
)

const (
	theirs = `"github.com/segmentio/analytics-go/v3"`
	ours   = `"github.com/hookferry/analytics/analyticsv3"`
)

// run builds the program with the given import and runs it with a recording collector. It
// returns the collector and the output of the program.
func run(t *testing.T, imported string) (*analyticstest.Server, string) {
	t.Helper()
	srv := analyticstest.New(t)
	web := httptest.NewServer(srv)
	defer web.Close()
	cmd := exec.Command("go", "run", "-overlay", overlay(t, "main.go", imported), ".")
	cmd.Env = append(os.Environ(), "ENDPOINT="+web.URL, "HOOKFERRY_ENDPOINT="+web.URL)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the program with the import %s: %v\n%s", imported, err, &stderr)
	}
	return srv, string(out)
}

// overlay returns an overlay file for the go command. With it, the command reads a source
// file with a different import.
func overlay(t *testing.T, file, imported string) string {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(source, []byte(theirs)); n != 1 {
		t.Fatalf("%s has %d imports of %s, want 1", file, n, theirs)
	}
	path, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	changed, list := filepath.Join(t.TempDir(), "changed.go"), filepath.Join(t.TempDir(), "overlay.json")
	text, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err == nil {
		err = os.WriteFile(changed, bytes.Replace(source, []byte(theirs), []byte(imported), 1), 0o600)
	}
	if err == nil {
		err = os.WriteFile(list, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestAProgramDoesTheSameWithBothPackages runs the program with v3 and with analyticsv3. The output
// and the requests must be the same, except for the differences that docs/migrating.md lists.
func TestAProgramDoesTheSameWithBothPackages(t *testing.T) {
	before, printedBefore := run(t, theirs)
	after, printedAfter := run(t, ours)
	if diff := cmp.Diff(printedBefore, printedAfter); diff != "" {
		t.Errorf("output of the program (-v3 +ours):\n%s", diff)
	}
	if diff := cmp.Diff(requests(before), requests(after)); diff != "" {
		t.Errorf("requests (-v3 +ours):\n%s", diff)
	}
	if diff := cmp.Diff(calls(t, before), calls(t, after)); diff != "" {
		t.Errorf("calls (-v3 +ours):\n%s", diff)
	}
}

// TestCodeForV3PassesItsTestsWithThisPackage runs the "before" code of docs/migrating.md, which is
// written for v3, with analyticsv3. Its examples and tests must pass.
func TestCodeForV3PassesItsTestsWithThisPackage(t *testing.T) {
	const dir = "before"
	cmd := exec.Command("go", "test", "-count=1", "-overlay", overlay(t, filepath.Join(dir, "v3_test.go"), ours), ".")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// requests returns the parts of each request that must be the same. calls returns its calls.
func requests(srv *analyticstest.Server) []map[string]any {
	var all []map[string]any
	for _, b := range srv.Batches() {
		all = append(all, map[string]any{
			"path": b.Path, "key": b.WriteKey, "type": b.Header.Get("Content-Type"), "status": b.Status,
			"calls": len(b.Calls), "id": id(b.MessageId), "sent": !b.SentAt.IsZero(), "library": b.Context["library"] != nil,
		})
	}
	return all
}

var (
	uuid    = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	rfc3339 = regexp.MustCompile(`^\d{4}-\d\d-\d\dT`)
)

// id replaces a random id by the word random.
func id(s string) string { return uuid.ReplaceAllString(s, "random") }

// calls returns the received calls, without the differences that docs/migrating.md lists. A
// call gets the context of its batch. An id and a time that the library has generated
// become "random" and "now". Times are in UTC and milliseconds. The switch "all" becomes
// "All".
func calls(t *testing.T, srv *analyticstest.Server) []any {
	var all []any
	for _, b := range srv.Batches() {
		for _, c := range b.Calls {
			var call map[string]any
			if err := json.Unmarshal(c.JSON, &call); err != nil {
				t.Fatal(err)
			}
			call["messageId"] = id(c.MessageId)
			if now := time.Since(c.Timestamp); now > -time.Minute && now < time.Hour {
				call["timestamp"] = "now"
			}
			context := maps.Clone(b.Context)
			delete(context, "library")
			maps.Copy(context, c.Context)
			call["context"] = context
			if switches := c.Integrations; switches["all"] != nil {
				switches["All"] = switches["all"]
				delete(switches, "all")
				call["integrations"] = switches
			}
			all = append(all, utc(call))
		}
	}
	return all
}

// utc returns v with all times in it in UTC and milliseconds.
func utc(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = utc(v[key])
		}
	case []any:
		for i := range v {
			v[i] = utc(v[i])
		}
	case string:
		if at, err := time.Parse(time.RFC3339Nano, v); err == nil && rfc3339.MatchString(v) {
			return at.UTC().Format("2006-01-02T15:04:05.000Z")
		}
	}
	return v
}
