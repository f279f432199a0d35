package analytics

import (
	"errors"
	"net/http"
	"testing"
)

func TestEmptySettingsAreReadFromTheEnvironment(t *testing.T) {
	for _, test := range []struct {
		name                  string
		key, endpoint         string
		envKey, envEndpoint   string
		wantKey, wantEndpoint string
	}{
		{"only the write key is set", "k", "", "", "", "k", DefaultEndpoint},
		{"both come from the environment", "", "", "env", "https://env.example", "env", "https://env.example"},
		{"settings override the environment", "k", "https://set.example", "env", "https://env.example", "k", "https://set.example"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("HOOKFERRY_WRITE_KEY", test.envKey)
			t.Setenv("HOOKFERRY_ENDPOINT", test.envEndpoint)
			col := &collector{}
			c := New(test.key)
			c.Endpoint, c.Transport = test.endpoint, col
			track(t, c, 1)
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			r := col.got()[0]
			req, err := http.NewRequest(http.MethodPost, r.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header = r.header
			if key, _, _ := req.BasicAuth(); key != test.wantKey || r.url != test.wantEndpoint+"/v1/batch" {
				t.Errorf("a request to %s with the write key %q, want %s/v1/batch and %q", r.url, key, test.wantEndpoint, test.wantKey)
			}
		})
	}
}

func TestAnUnusableEnvironmentIsAConfigError(t *testing.T) {
	for _, test := range []struct{ name, variable, value, field string }{
		{"write key", "HOOKFERRY_WRITE_KEY", "a:hunter2", "write key"},
		{"endpoint", "HOOKFERRY_ENDPOINT", "http://u:hunter2@collector.example", "Endpoint"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("HOOKFERRY_WRITE_KEY", "k")
			t.Setenv(test.variable, test.value)
			var config *ConfigError
			if err := New("").Track(&Track{UserId: "u", Event: "e"}); !errors.As(err, &config) || config.Field != test.field {
				t.Errorf("Track: error %v, want a *ConfigError about %s", err, test.field)
			}
		})
	}
}
