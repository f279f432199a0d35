package analytics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/analyticstest"
	"github.com/hookferry/analytics/step"
)

func TestEveryCallReturnsAConfigErrorForUnusableSettings(t *testing.T) {
	for _, test := range []struct {
		name  string
		key   string
		set   func(*Client)
		field string
	}{
		{"no write key", "", func(*Client) {}, "write key"},
		{"write key with a colon", "a:b", func(*Client) {}, "write key"},
		{"endpoint without a scheme", "k", func(c *Client) { c.Endpoint = "collector.example" }, "Endpoint"},
		{"endpoint with another scheme", "k", func(c *Client) { c.Endpoint = "ftp://collector.example" }, "Endpoint"},
		{"endpoint without a host", "k", func(c *Client) { c.Endpoint = "http://" }, "Endpoint"},
		{"endpoint with only a port", "k", func(c *Client) { c.Endpoint = "http://:8080" }, "Endpoint"},
		{"endpoint with a password", "k", func(c *Client) { c.Endpoint = "http://u:hunter2@collector.example" }, "Endpoint"},
		{"endpoint with a query", "k", func(c *Client) { c.Endpoint = "http://collector.example?token=hunter2" }, "Endpoint"},
		{"endpoint with a fragment", "k", func(c *Client) { c.Endpoint = "http://collector.example#hunter2" }, "Endpoint"},
		{"endpoint with a space at its end", "k", func(c *Client) { c.Endpoint = "http://collector.example/ " }, "Endpoint"},
		{"endpoint with an invisible character", "k", func(c *Client) { c.Endpoint = "http://collector.example\u200b" }, "Endpoint"},
		{"endpoint malformed", "k", func(c *Client) { c.Endpoint = "http://u:hunter2@collector.example:port" }, "Endpoint"},
		{"timeout", "k", func(c *Client) { c.Timeout = -1 }, "Timeout"},
		{"memory for less than a batch", "k", func(c *Client) { c.MaxMemory = MaxBatchSize - 1 }, "MaxMemory"},
	} { // TestNegativeNumbersAreRefused tests the other negative numbers
		t.Run(test.name, func(t *testing.T) {
			c := New(test.key)
			c.Transport = &collector{}
			test.set(c)
			for name, call := range everyCall(c) {
				err := call()
				var config *ConfigError
				if !errors.As(err, &config) || config.Field != test.field {
					t.Fatalf("%s: error %v, want a *ConfigError about %s", name, err, test.field)
				}
				if !strings.HasPrefix(err.Error(), "analytics: "+test.field+": ") || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("%s: error %q, want one that begins with the field and does not contain the secret", name, err)
				}
			}
			closeClient(t, c)
			checkStats(t, c, 0, 0, 0, 0)
		})
	}
}

func TestTheZeroClientReturnsAConfigErrorForTheWriteKey(t *testing.T) {
	var config *ConfigError
	if err := new(Client).Track(&Track{UserId: "u", Event: "e"}); !errors.As(err, &config) || config.Field != "write key" {
		t.Errorf("Track: error %v, want a *ConfigError about the write key", err)
	}
}

func TestBatchURLAppendsThePathToTheEndpoint(t *testing.T) {
	for _, test := range []struct{ endpoint, want string }{
		{"", "http://localhost:8080/v1/batch"},
		{"http://collector.example", "http://collector.example/v1/batch"},
		{"https://collector.example/", "https://collector.example/v1/batch"},
		{"https://collector.example:444/sub", "https://collector.example:444/sub/v1/batch"},
		{"https://collector.example/sub/", "https://collector.example/sub/v1/batch"},
		{"HTTP://[::1]:8080//", "http://[::1]:8080/v1/batch"},
		{"http://Österreich.test:8080", "http://xn--sterreich-z7a.test:8080/v1/batch"},
		{"http://collector.example/v1", "http://collector.example/v1/batch"},
		{"http://collector.example/v1/", "http://collector.example/v1/batch"},
		{"http://collector.example/v1/batch", "http://collector.example/v1/batch"},
		{"http://collector.example//v1//batch//", "http://collector.example/v1/batch"},
		{"http://collector.example/s%2Fub/v1", "http://collector.example/s%2Fub/v1/batch"},
		{"http://collector.example/s%2Fub/v1/batch/", "http://collector.example/s%2Fub/v1/batch"},
		{"http://collector.example/mv1", "http://collector.example/mv1/v1/batch"},
		{"http://collector.example/batch", "http://collector.example/batch/v1/batch"},
	} {
		u, err := batchURL(test.endpoint)
		if err != nil || u.String() != test.want {
			t.Errorf("batchURL(%q) = %v, %v, want %s", test.endpoint, u, err, test.want)
		}
	}
}

func TestSettingsAreReadAtTheFirstCallOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, col := newTestClient(nil)
		c.FlushAt = 2
		track(t, c, 1)
		c.FlushAt = 50
		c.Endpoint = "nonsense"
		track(t, c, 1)
		synctest.Wait()
		if r := col.got(); len(r) != 1 || len(r[0].messages) != 2 {
			t.Errorf("%d requests, want one of 2 messages", len(r))
		}
		closeClient(t, c)
	})
}

func TestDebuggingIsOnIfDEBUGListsAnalytics(t *testing.T) {
	for _, test := range []struct {
		value string
		want  bool
	}{
		{"", false}, {"analytics", true}, {"*", true}, {"a,analytics", true}, {"a analytics b", true}, {"a, analytics", true},
		{"analyticsx", false}, {"Analytics", false}, {"a,b", false}, {"analytics:*", false},
	} {
		if got := debugging(test.value); got != test.want {
			t.Errorf("debugging(%q) = %t, want %t", test.value, got, test.want)
		}
	}
}

// captureStderr runs f and returns the text that f wrote to standard error.
func captureStderr(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	old := os.Stderr
	os.Stderr = w
	defer func() { os.Stderr = old }()
	f()
	w.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDEBUGTurnsOnLoggingToStandardError(t *testing.T) {
	for _, test := range []struct {
		debug string
		want  bool
	}{{"", false}, {"other", false}, {"analytics", true}} {
		t.Setenv("DEBUG", test.debug)
		text := captureStderr(t, func() {
			c, _ := newTestClient(always(400))
			track(t, c, 1)
			c.Close()
		})
		if got := strings.Contains(text, "level=DEBUG") && strings.Contains(text, "400 Bad Request"); got != test.want || !test.want && text != "" {
			t.Errorf("with DEBUG=%q standard error has %q, want the failed attempt: %t", test.debug, text, test.want)
		}
	}
}

func TestErrorsAndLogsDoNotContainTheWriteKey(t *testing.T) {
	const key = "wk_hunter2"
	t.Setenv("DEBUG", "*")
	for _, answer := range []step.Step{step.Answer(http.StatusUnauthorized), step.Refuse(), step.Hang()} {
		var told strings.Builder
		text := captureStderr(t, func() {
			synctest.Test(t, func(t *testing.T) {
				c := New(key)
				c.Endpoint, c.Transport = "http://collector.example", analyticstest.New(t, answer).Transport()
				c.OnDelivery = func(d Delivery) { fmt.Fprintf(&told, "%v %+v", d.Err, d.Reason) }
				track(t, c, 1)
				ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
				defer cancel()
				err := c.Shutdown(ctx)
				if err == nil {
					t.Error("Shutdown: no error")
				}
				fmt.Fprintf(&told, "%v %+v %#v", err, c, c)
			})
		})
		all := told.String() + text
		for _, secret := range []string{key, url.QueryEscape(key), "d2tfaHVudGVyMjo"} {
			if strings.Contains(all, secret) {
				t.Errorf("the secret %q is in the errors and logs: %q", secret, all)
			}
		}
		if strings.Contains(all, "/v1/batch") {
			t.Errorf("the URL is in the errors and logs: %q", all)
		}
	}
}

// If a field of Client is a negative number, the error names the field. The only exception is
// SpoolSync of -1, which is SyncEachCall.
func TestNegativeNumbersAreRefused(t *testing.T) {
	checked := 0
	for i := range reflect.TypeFor[Client]().NumField() {
		field := reflect.TypeFor[Client]().Field(i)
		if !field.IsExported() || field.Type.Kind() != reflect.Int && field.Type.Kind() != reflect.Int64 {
			continue
		}
		checked++
		for _, n := range []int64{-1, -2} {
			c := New("k")
			reflect.ValueOf(c).Elem().Field(i).SetInt(n)
			_, err := c.settings()
			if field.Name == "SpoolSync" && n == int64(SyncEachCall) {
				if err != nil {
					t.Errorf("SyncEachCall: error %v, want none", err)
				}
				continue
			}
			var config *ConfigError
			if !errors.As(err, &config) || config.Field != field.Name {
				t.Errorf("%s of %d: %v, want a ConfigError that names the field", field.Name, n, err)
			}
		}
	}
	if checked == 0 {
		t.Error("found no numeric field in Client, so this test checks nothing")
	}
}
