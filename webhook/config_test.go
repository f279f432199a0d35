package webhook

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
)

// nullStore is a Store whose methods are never called.
type nullStore struct{ Store }

// The error also has none of the secrets of the Config.
func TestNewNamesTheInvalidField(t *testing.T) {
	good := func() Config {
		return Config{
			Store: nullStore{},
			Destinations: []Destination{{
				ID:        "crm",
				Endpoints: []Endpoint{{URL: "https://crm.example/hook", Headers: map[string]string{"X-Api-Key": "k"}}},
				Secret:    "shh",
			}},
		}
	}
	endpoint := func(change func(*Endpoint)) func(*Config) {
		return func(c *Config) { change(&c.Destinations[0].Endpoints[0]) }
	}
	header := func(name, value string) func(*Config) {
		return endpoint(func(e *Endpoint) { e.Headers = map[string]string{name: value} })
	}
	toURL := func(s string) func(*Config) { return endpoint(func(e *Endpoint) { e.URL = s }) }
	const (
		urlField = "Destinations[0].Endpoints[0].URL"
		headers  = "Destinations[0].Endpoints[0].Headers"
	)
	if _, err := New(good()); err != nil {
		t.Fatalf("New() of a valid Config = %v, want no error", err)
	}
	for _, tt := range []struct {
		name   string
		change func(*Config)
		field  string
	}{
		{"no store", func(c *Config) { c.Store = nil }, "Store"},
		{"no destination", func(c *Config) { c.Destinations = nil }, "Destinations"},
		{"destinations and a directory", func(c *Config) { c.Directory = struct{ Directory }{} }, "Destinations"},
		{"negative age of answers", func(c *Config) { c.AnswerAge = -1 }, "AnswerAge"},
		{"negative number of answers", func(c *Config) { c.MaxAnswers = -1 }, "MaxAnswers"},
		{"negative bytes of answers", func(c *Config) { c.MaxAnswerBytes = -1 }, "MaxAnswerBytes"},
		{"tenant of a destination", func(c *Config) { c.Destinations[0].Tenant = strings.Repeat("x", 256) }, "Destinations[0].Tenant"},
		{"timeout of a destination", func(c *Config) { c.Destinations[0].Timeout = DefaultTimeout + 1 }, "Destinations[0].Timeout"},
		{"negative timeout of a destination", func(c *Config) { c.Destinations[0].Timeout = -1 }, "Destinations[0].Timeout"},
		{"window of a destination", func(c *Config) { c.Window, c.Destinations[0].Window = time.Hour, time.Hour+1 }, "Destinations[0].Window"},
		{"schedule of a destination", func(c *Config) { c.Destinations[0].Schedule = "often" }, "Destinations[0].Schedule"},
		{"filter of an unknown type", func(c *Config) { c.Destinations[0].Filter.Include = []string{"track", "Order *"} }, "Destinations[0].Filter.Include[1]"},
		{"filter with a star inside a type", func(c *Config) { c.Destinations[0].Filter.Exclude = []string{"invoice.*", "t*"} }, "Destinations[0].Filter.Exclude[1]"},
		{"filter with an empty name", func(c *Config) { c.Destinations[0].Filter.Exclude = []string{"track:"} }, "Destinations[0].Filter.Exclude[0]"},
		{"filter that is too long", func(c *Config) {
			c.Destinations[0].Filter.Exclude = []string{"track:" + strings.Repeat("x", maxPattern)}
		}, "Destinations[0].Filter.Exclude[0]"},
		{"too many patterns in a filter", func(c *Config) { c.Destinations[0].Filter.Include = make([]string, maxPatterns+1) }, "Destinations[0].Filter.Include"},
		{"service name with a space", func(c *Config) { c.ServiceName = "My Service" }, "ServiceName"},
		{"service name with a line end", func(c *Config) { c.ServiceName = "a\r\nX: y" }, "ServiceName"},
		{"negative timeout", func(c *Config) { c.Timeout = -1 }, "Timeout"},
		{"negative window", func(c *Config) { c.Window = -1 }, "Window"},
		{"negative time to disable after", func(c *Config) { c.DisableAfter = -1 }, "DisableAfter"},
		{"negative poll", func(c *Config) { c.Poll = -1 }, "Poll"},
		{"negative concurrency", func(c *Config) { c.MaxConcurrent = -1 }, "MaxConcurrent"},
		{"negative in flight", func(c *Config) { c.MaxInFlight = -1 }, "MaxInFlight"},
		{"negative bytes in flight", func(c *Config) { c.MaxBytesInFlight = -1 }, "MaxBytesInFlight"},
		{"age of dead letters below Unlimited", func(c *Config) { c.DeadMaxAge = Unlimited - 1 }, "DeadMaxAge"},
		{"age of a backlog below Unlimited", func(c *Config) { c.BacklogMaxAge = Unlimited - 1 }, "BacklogMaxAge"},
		{"negative size of a backlog", func(c *Config) { c.BacklogMaxBytes = -1 }, "BacklogMaxBytes"},
		{"size of dead letters below Unlimited", func(c *Config) { c.DeadMaxBytes = Unlimited - 1 }, "DeadMaxBytes"},
		{"prefix of IPv4 and IPv6", func(c *Config) {
			c.AllowAddresses = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::ffff:0:0/95")}
		}, "AllowAddresses[1]"},
		{"zero prefix", func(c *Config) { c.AllowAddresses = make([]netip.Prefix, 1) }, "AllowAddresses[0]"},
		{"proxy over https", func(c *Config) {
			c.Proxy = &url.URL{Scheme: "https", Host: "proxy.example", User: url.UserPassword("u", "hunter2")}
		}, "Proxy"},
		{"proxy without a host", func(c *Config) { c.Proxy = &url.URL{Scheme: "http", Path: "/hunter2"} }, "Proxy"},
		{"no certificate verification", func(c *Config) { c.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} }, "TLSClientConfig"},
		{"no id", func(c *Config) { c.Destinations[0].ID = "" }, "Destinations[0].ID"},
		{"long id", func(c *Config) { c.Destinations[0].ID = strings.Repeat("x", 256) }, "Destinations[0].ID"},
		{"id twice", func(c *Config) { c.Destinations = append(c.Destinations, c.Destinations[0]) }, "Destinations[1].ID"},
		{"no endpoints", func(c *Config) { c.Destinations[0].Endpoints = nil }, "Destinations[0].Endpoints"},
		{"six endpoints", func(c *Config) { c.Destinations[0].Endpoints = make([]Endpoint, 6) }, "Destinations[0].Endpoints"},
		{"negative concurrency of a destination", func(c *Config) { c.Destinations[0].MaxConcurrent = -1 }, "Destinations[0].MaxConcurrent"},
		{"negative rate of a destination", func(c *Config) { c.Destinations[0].MaxRate = -1 }, "Destinations[0].MaxRate"},
		{"same endpoint twice", func(c *Config) {
			d := &c.Destinations[0]
			d.Endpoints = append(d.Endpoints, d.Endpoints[0])
		}, "Destinations[0].Endpoints[1].URL"},
		{"no URL", toURL(""), urlField},
		{"relative URL", toURL("/hook"), urlField},
		{"URL without a host", toURL("https:///hook"), urlField},
		{"scheme", toURL("ftp://h/"), urlField},
		{"scheme missing", toURL("crm.example/hook"), urlField},
		{"bad escape", toURL("https://h/%zz?key=hunter2"), urlField},
		{"control character", toURL("https://h/\n?key=hunter2"), urlField},
		{"bad port", toURL("https://u:hunter2@h:http/"), urlField},
		{"port out of range", toURL("https://h:65536/"), urlField},
		{"port 0", toURL("https://h:0/"), urlField},
		{"IPv4 address in brackets", toURL("https://[192.0.2.1]/"), urlField},
		{"password with a slash", toURL("https://u:hunter2/pass@h/"), urlField},
		{"space in the query", toURL("https://h/?key=hunter2 x"), urlField},
		{"long URL", toURL("https://h/" + strings.Repeat("x", 8<<10)), urlField},
		{"six headers", endpoint(func(e *Endpoint) {
			e.Headers = map[string]string{"A": "", "B": "", "C": "", "D": "", "E": "", "F": ""}
		}), headers},
		{"header name empty", header("", "v"), headers + `[""]`},
		{"header name with a space", header("a b", "v"), headers + `["a b"]`},
		{"header name with a colon", header("a:", "v"), headers + `["a:"]`},
		{"header name with a line end", header("a\r\nb", "v"), headers + `["a\r\nb"]`},
		{"header value with a line end", header("A", "hunter2\r\nB: c"), headers + `["A"]`},
		{"header value with a NUL", header("A", "hunter2\x00"), headers + `["A"]`},
		{"header value with space around it", header("A", " hunter2"), headers + `["A"]`},
		{"header value long", header("A", strings.Repeat("hunter2", 8<<10)), headers + `["A"]`},
		{"header twice", endpoint(func(e *Endpoint) { e.Headers = map[string]string{"X-A": "1", "x-a": "2"} }), ""},
		{"Host", header("host", "x"), headers + `["host"]`},
		{"Content-Length", header("content-length", "1"), headers + `["content-length"]`},
		{"Content-Type", header("CONTENT-TYPE", "x"), headers + `["CONTENT-TYPE"]`},
		{"Transfer-Encoding", header("Transfer-Encoding", "chunked"), headers + `["Transfer-Encoding"]`},
		{"TE", header("TE", "trailers"), headers + `["TE"]`},
		{"Trailer", header("trailer", "X-Signature"), headers + `["trailer"]`},
		{"Upgrade", header("Upgrade", "h2c"), headers + `["Upgrade"]`},
		{"Expect", header("expect", "100-continue"), headers + `["expect"]`},
		{"Keep-Alive", header("Keep-Alive", "timeout=5"), headers + `["Keep-Alive"]`},
		{"Proxy-Connection", header("proxy-connection", "close"), headers + `["proxy-connection"]`},
		{"Connection", header("Connection", "close"), headers + `["Connection"]`},
		{"User-Agent", header("User-agent", "x"), headers + `["User-agent"]`},
		{"X-Signature", header("x-signature", "x"), headers + `["x-signature"]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := good()
			tt.change(&c)
			_, err := New(c)
			var ce *ConfigError
			if !errors.As(err, &ce) {
				t.Fatalf("New() = %v, want a *ConfigError", err)
			}
			if tt.field != "" && ce.Field != tt.field {
				t.Errorf("New() names the field %s (%v), want %s", ce.Field, err, tt.field)
			}
			if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "shh") {
				t.Errorf("the error has a secret: %v", err)
			}
		})
	}
}

// withDefaults keeps every field that is set, and replaces every zero field that has a default.
func TestConfigDefaultsReplaceOnlyZeroFields(t *testing.T) {
	set := Config{
		Store:            nullStore{},
		Note:             func() []byte { return nil },
		MaxBytesInFlight: 1 << 20,
		Destinations:     []Destination{{ID: "x"}},
		Catalogue:        new(event.Catalogue),
		ServiceName:      "Acme",
		Timeout:          time.Second,
		DeadMaxAge:       time.Hour,
		DeadMaxBytes:     1 << 20,
		BacklogMaxBytes:  1 << 20,
		BacklogMaxAge:    time.Hour,
		Window:           time.Minute,
		Retries:          StandardRetries(),
		AnswerAge:        time.Minute,
		MaxAnswers:       1000,
		MaxAnswerBytes:   1 << 20,
		DisableAfter:     time.Hour,
		DisableGone:      true,
		BuryDisabled:     true,
		MaxConcurrent:    3,
		MaxInFlight:      7,
		Poll:             time.Hour,
		AllowAddresses:   []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		TLSClientConfig:  &tls.Config{ServerName: "x"},
		Proxy:            &url.URL{Scheme: "socks5", Host: "127.0.0.1:1080"},
		Logger:           slog.New(slog.DiscardHandler),
	}
	got, wrong := set.withDefaults()
	must(t, configError(wrong))
	a, b := reflect.ValueOf(set), reflect.ValueOf(got)
	for i := range a.NumField() {
		name := a.Type().Field(i).Name
		if name != "Directory" && name != "DialContext" && name != "Observers" && a.Field(i).IsZero() {
			t.Errorf("the test does not set the field %s", name)
		}
		if a.Field(i).Kind() != reflect.Func && !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			t.Errorf("%s: got %v, want %v as it was set", name, b.Field(i), a.Field(i))
		}
	}
	zero, wrong := Config{Store: nullStore{}, Destinations: set.Destinations}.withDefaults()
	must(t, configError(wrong))
	if zero.MaxBytesInFlight != 64<<20 || zero.ServiceName != "Hookferry" || zero.Timeout != 5*time.Second || zero.Window != 4*time.Hour ||
		zero.MaxConcurrent != 64 || zero.MaxInFlight != 1024 || zero.Poll != time.Second || zero.DeadMaxAge != 30*24*time.Hour || zero.DeadMaxBytes != 1<<30 || zero.BacklogMaxAge != 30*24*time.Hour || zero.Logger == nil {
		t.Errorf("got the defaults %+v, want those that the comments of Config name", zero)
	}
}

func TestConfigDefaultsThatDependOnOthers(t *testing.T) {
	got, wrong := Config{
		Store: nullStore{}, Destinations: []Destination{{ID: "x"}},
		MaxInFlight:    20,
		AllowAddresses: []netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.0/104")},
	}.withDefaults()
	must(t, configError(wrong))
	if got.MaxConcurrent != 5 {
		t.Errorf("MaxConcurrent is %d for a MaxInFlight of 20, want 5", got.MaxConcurrent)
	}
	if want := netip.MustParsePrefix("10.0.0.0/8"); got.AllowAddresses[0] != want {
		t.Errorf("the IPv4-mapped prefix became %v, want %v", got.AllowAddresses[0], want)
	}
}

func TestEndpointNameHasNoSecrets(t *testing.T) {
	target, err := compile(&Destination{ID: "x", Secret: "shh", Endpoints: []Endpoint{{
		URL:     "https://user:hunter2@crm.example:8443/hook/a%2Fb?key=hunter2#hunter2",
		Headers: map[string]string{"x-key": "v"},
	}}}, &Config{ServiceName: "Acme", MaxConcurrent: 8}, nil)
	must(t, err)
	e := target.endpoints[0]
	if want := "https://crm.example:8443/hook/a%2Fb"; e.name != want {
		t.Errorf("name = %q, want %q", e.name, want)
	}
	if got := e.header.Get("Authorization"); got != "Basic dXNlcjpodW50ZXIy" {
		t.Errorf("Authorization = %q, want the basic authentication of the URL", got)
	}
	if got := e.header.Get("User-Agent"); got != "Acme/1.0" {
		t.Errorf("User-Agent = %q, want Acme/1.0", got)
	}
	if got := e.header["X-Key"]; len(got) != 1 || got[0] != "v" {
		t.Errorf("X-Key = %q, want one value, v", got)
	}
	if e.url.Fragment != "" {
		t.Error("the URL of requests has a fragment, want none")
	}
}

func TestNegativeConfig(t *testing.T) {
	ok := Destination{ID: "crm", Endpoints: []Endpoint{{URL: "https://crm.example/"}}}
	testkit.Negative(t, Config{Store: nullStore{}, Destinations: []Destination{ok}}, func(c Config) error {
		_, err := New(c)
		return err
	}, "DeadMaxAge", "DeadMaxBytes", "BacklogMaxAge")
	testkit.Negative(t, ok, func(d Destination) error { return d.Validate() })
}
