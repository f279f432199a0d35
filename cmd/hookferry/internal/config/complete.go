package config

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

// Complete checks settings, and makes what is derived of them. The error is an
// *Error.
func (s *Settings) Complete() error {
	if problems := s.complete(nil, nil); len(problems) > 0 {
		return &Error{Path: s.Path, Problems: problems}
	}
	return nil
}

// complete is Complete for settings of a file, with what could not be read of it and
// the places of its keys. It returns the other problems: a value that could not be
// read gets no second one.
func (s *Settings) complete(unread []Problem, places map[string]place) []Problem {
	c := &checker{s: s, unread: unread, places: places}
	if c.told("") {
		return nil // nothing was read
	}
	c.check()
	slices.SortFunc(s.Sources, func(a, b Source) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Destinations, func(a, b Destination) int { return strings.Compare(a.ID, b.ID) })
	return c.problems
}

// Keep takes over from old, the settings in use, the Webhook of each destination that
// has not changed: a forwarder tells by the pointer that a destination is as it was.
func (s *Settings) Keep(old *Settings) {
	for i := range s.Destinations {
		d := &s.Destinations[i]
		before := old.Destination(d.ID)
		if before == nil {
			continue
		}
		is, was := *d, *before
		is.Webhook, was.Webhook = nil, nil
		if reflect.DeepEqual(is, was) {
			d.Webhook = before.Webhook
		}
	}
}

// NeedRestart returns the keys whose values differ from those of old, which a server
// was started with, and count only after a restart.
func (s *Settings) NeedRestart(old *Settings) []string {
	var keys []string
	for _, f := range []struct {
		key     string
		is, was any
	}{
		{"listen", s.Listen, old.Listen},
		{"tls", s.TLS == nil, old.TLS == nil},
		{"baseURL", s.BaseURL, old.BaseURL},
		{"data", s.Data, old.Data},
		{"queue", s.Queue, old.Queue},
		{"admin.listen", s.Admin.Listen, old.Admin.Listen},
		{"admin.token", s.Admin.Token, old.Admin.Token},
		{"admin.tls", s.Admin.TLS == nil, old.Admin.TLS == nil},
		{"webhooks", s.Webhooks, old.Webhooks},
		{"deadLetters", s.DeadLetters, old.DeadLetters},
		{"history", s.History, old.History},
		{"limits", s.Limits, old.Limits},
		{"log.format", s.Log.Format, old.Log.Format},
		{"metrics", s.Metrics, old.Metrics},
		{"tracing", s.Tracing, old.Tracing},
	} {
		if !reflect.DeepEqual(f.is, f.was) {
			keys = append(keys, f.key)
		}
	}
	return keys
}

// A checker collects what is wrong with settings.
type checker struct {
	s        *Settings
	unread   []Problem        // of values that could not be read
	places   map[string]place // of keys, nil if there is no file
	problems []Problem
}

func (c *checker) problem(key, format string, args ...any) {
	if len(c.problems) < maxProblems && !c.told(key) {
		c.problems = append(c.problems, Problem{Key: key, Text: fmt.Sprintf(format, args...)})
	}
}

// told reports whether the value at key could not be read, or that it is a part of.
func (c *checker) told(key string) bool {
	return slices.ContainsFunc(c.unread, func(p Problem) bool { return p.Key == key || within(key, p.Key) })
}

// lacks reports whether a part of the value at key could not be read.
func (c *checker) lacks(key string) bool {
	return slices.ContainsFunc(c.unread, func(p Problem) bool { return within(p.Key, key) })
}

// within reports whether key is below whole.
func within(key, whole string) bool {
	rest, ok := strings.CutPrefix(key, whole)
	return ok && rest != "" && (rest[0] == '.' || rest[0] == '[')
}

// number checks that n is from least to most.
func number[T int | float64 | Size | time.Duration](c *checker, key string, n, least, most T) {
	if !(least <= n && n <= most) {
		c.problem(key, "%v to %v are allowed", least, most)
	}
}

func (c *checker) check() {
	s := c.s
	c.address("listen", s.Listen)
	c.certificate("tls", s.TLS)
	if s.BaseURL != "" && !isBaseURL(s.BaseURL) {
		c.problem("baseURL", "want an http or https URL with a host and perhaps a path, and nothing else")
	}
	if s.Data == "" {
		c.problem("data", "want a folder")
	}
	c.queue()
	number(c, "drain", s.Drain, 0, time.Hour)
	number(c, "grace", s.Grace, 0, time.Hour)
	c.admin()
	c.webhooks()
	number(c, "webhooks.disableAfter", s.Webhooks.DisableAfter, 0, 8760*time.Hour)
	if w := s.Webhooks.WhenDisabled; w != Keep && w != Dead {
		c.problem("webhooks.whenDisabled", "want keep or dead")
	}
	if s.Webhooks.Operations != "" {
		c.name("webhooks.operations", s.Webhooks.Operations)
	}
	number(c, "deadLetters.maxAge", s.DeadLetters.MaxAge, time.Minute, 87_600*time.Hour)
	number(c, "deadLetters.maxBytes", s.DeadLetters.MaxBytes, 1<<20, 1<<40)
	if s.History.MaxAge != 0 {
		number(c, "history.maxAge", s.History.MaxAge, time.Minute, 87_600*time.Hour)
	}
	number(c, "history.maxBytes", s.History.MaxBytes, 1<<20, 1<<40)
	if s.Queue.Shared() && s.History.MaxAge != 0 {
		c.problem("history.maxAge", "is for the store in the data folder; with queue.url nothing that was delivered is kept")
	}
	number(c, "limits.connections", s.Limits.Connections, 1, 1_000_000)
	number(c, "limits.connectionsPerAddress", s.Limits.ConnectionsPerAddress, 1, 1_000_000)
	number(c, "limits.requestsPerAddress", s.Limits.RequestsPerAddress, 1, 1_000_000)
	if s.Limits.Memory != 0 {
		number(c, "limits.memory", s.Limits.Memory, 1<<20, 1<<40)
	}
	if s.Limits.ProcessMemory != 0 {
		number(c, "limits.processMemory", s.Limits.ProcessMemory, 64<<20, 1<<50)
	}
	number(c, "limits.store", s.Limits.Store, 0, 1<<50)
	if f := s.Log.Format; f != "text" && f != "json" {
		c.problem("log.format", "want text or json")
	}
	number(c, "log.access", s.Log.Access, 0, 1_000_000)
	if s.Tracing.Endpoint != "" && !isBaseURL(s.Tracing.Endpoint) {
		c.problem("tracing.endpoint", "want an http or https URL with a host and perhaps a path, and nothing else; credentials go into tracing.headers")
	}
	c.headers("tracing.headers", s.Tracing.Headers)
	number(c, "tracing.sample", s.Tracing.Sample, 0, 1)
	c.destinations()
	c.sources()
}

// headers checks the headers of a request: net/http would refuse each request with
// one that is wrong, and of two with the same name send either.
func (c *checker) headers(key string, headers map[string]signature.Secret) {
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		same := strings.ToLower(name)
		switch at := key + "." + name; {
		case name == "" || strings.ContainsFunc(name, notInToken):
			c.problem(at, "is no name of a header: letters, digits and !#$%%&'*+-.^_`|~ are allowed")
		case seen[same]:
			c.problem(at, "is given twice: names of headers are the same in any case")
		case strings.ContainsFunc(headers[name].Reveal(), func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			c.problem(at, "has a line break or another control character")
		}
		seen[same] = true
	}
}

// notInToken reports whether r has no place in a token (RFC 9110, section 5.6.2).
func notInToken(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
}

// isBaseURL reports whether text is a URL that others are made of by joining a
// path to it.
func isBaseURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && u.RawQuery == "" && u.Fragment == ""
}

// address checks an address to listen on.
func (c *checker) address(key, address string) bool {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		c.problem(key, "want an address such as :8080 or localhost:8080")
	}
	return err == nil
}

func (c *checker) admin() {
	a := &c.s.Admin
	c.certificate("admin.tls", a.TLS) // in use until a restart, if it is off only now
	if a.Listen == Off {
		return
	}
	valid := c.address("admin.listen", a.Listen)
	const least = 16
	switch {
	case a.Token == "" && valid && !IsLoopback(a.Listen):
		c.problem("admin.token", "is required, as admin.listen is more than this machine's own address; or set that to localhost:8081 or off")
	case a.Token != "" && (len(a.Token) < least || len(a.Token) > 1024 || strings.ContainsFunc(a.Token.Reveal(), func(r rune) bool { return r <= ' ' || r > '~' })):
		c.problem("admin.token", "want %d to 1024 visible characters of ASCII", least)
	}
}

// IsLoopback reports whether only this machine can reach what listens on an
// address.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func (c *checker) certificate(key string, t *Certificate) {
	if t == nil {
		return
	}
	pair, err := tls.X509KeyPair([]byte(t.Cert.Data), []byte(t.Key.Data))
	if err == nil {
		t.Pair = &pair
	} else if c.both(key, t.Cert, t.Key) && !c.lacks(key) {
		c.problem(key, "want a certificate and its key, both in PEM")
	}
}

// both checks that a certificate and its key are given, and says which is not.
func (c *checker) both(key string, cert, private Pem) bool {
	if cert.Path == "" {
		c.problem(key+".certificate", "is required")
	}
	if private.Path == "" {
		c.problem(key+".key", "is required")
	}
	return cert.Path != "" && private.Path != ""
}

// ProxyURL is what Proxy says, nil if it is empty. The settings are complete.
func (w *Webhooks) ProxyURL() *url.URL {
	if w.Proxy == "" {
		return nil
	}
	u, err := url.Parse(w.Proxy.Reveal())
	if err != nil {
		return nil
	}
	return u
}

func (c *checker) webhooks() {
	w := &c.s.Webhooks
	// The forwarder knows what it takes. It tells one problem at a time.
	refusal := func(name string, proxy *url.URL) (refused *webhook.ConfigError) {
		_, err := webhook.New(webhook.Config{
			Store:       memqueue.New(memqueue.Config{}),
			Lookup:      func(context.Context, string) (*webhook.Destination, error) { return nil, webhook.ErrUnknownDestination },
			ServiceName: name,
			Proxy:       proxy,
		})
		errors.As(err, &refused)
		return refused
	}
	if refusal(w.Name, nil) != nil { // whose text repeats the name
		c.problem("webhooks.name", "want a product name: letters, digits and !#$%%&'*+-.^_`|~")
	}
	proxy := w.ProxyURL()
	if w.Proxy != "" && proxy == nil {
		c.problem("webhooks.proxy", "is not a URL")
	} else if refused := refusal("", proxy); refused != nil {
		c.problem("webhooks.proxy", "%s", refused.Problem)
	}
}

// name checks a text that names something.
func (c *checker) name(key, s string) bool {
	if s == "" || len(s) > 255 || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		c.problem(key, "want 1 to 255 bytes of UTF-8 without control characters")
		return false
	}
	return true
}

// id checks the id of a destination.
func (c *checker) id(key, id string) bool {
	if id == "." || id == ".." {
		c.problem(key, "is no name in the path of a URL, as the admin API has it")
	}
	return c.name(key, id)
}

func (c *checker) destinations() {
	s := c.s
	if len(s.Destinations) > MaxDestinations {
		c.problem("destinations", "at most %d are allowed", MaxDestinations)
		return
	}
	ids := map[string]string{}
	for i := range s.Destinations {
		d, key := &s.Destinations[i], fmt.Sprintf("destinations[%d]", i)
		if c.id(key+".id", d.ID) {
			c.unique(ids, d.ID, key+".id")
		}
		c.destination(key, d)
	}
}

// destination checks what a forwarder takes of the destination at key, and makes its
// Webhook if there is nothing wrong.
func (c *checker) destination(key string, d *Destination) {
	w := &webhook.Destination{
		ID: d.ID, Disabled: !d.Enabled, Secret: d.Secret, StandardSecrets: d.StandardSecrets,
		Filter:  webhook.Filter(d.Filter),
		Timeout: d.Timeout, Window: d.Window, Schedule: webhook.Schedule(d.Schedule), NetHTTP: d.NetHTTP,
		MaxConcurrent: d.MaxConcurrent, MaxRate: d.MaxRate, MaxBurst: d.MaxBurst,
	}
	for _, e := range d.Endpoints {
		we := webhook.Endpoint{URL: e.URL.Reveal()}
		if len(e.Headers) > 0 {
			we.Headers = make(map[string]string, len(e.Headers))
		}
		for name, value := range e.Headers {
			we.Headers[name] = value.Reveal()
		}
		w.Endpoints = append(w.Endpoints, we)
	}
	if t := c.clientTLS(under(key, "tls"), d.TLS); t != nil {
		w.TLS = &webhook.TLS{Certificates: t.Certificates, RootCAs: t.RootCAs}
	}
	refused := refusals(w.Validate())
	for _, r := range refused {
		if r.Field != "ID" { // that was told above
			c.problem(under(key, keyOf(r.Field)), "%s", r.Problem)
		}
	}
	if len(refused) == 0 {
		d.Webhook = w
	}
}

// unique checks that the value at key is not one that another key has. first has the
// first key with each value.
func (c *checker) unique(first map[string]string, value, key string) {
	other, taken := first[value]
	if !taken {
		first[value] = key
		return
	}
	if at, ok := c.places[other]; ok {
		other = fmt.Sprintf("%s in line %d", other, at.line)
	}
	c.problem(key, "is the same as %s", other)
}

// refusals returns what Validate refuses.
func refusals(err error) (list []*webhook.ConfigError) {
	var one *webhook.ConfigError
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range several.Unwrap() {
			list = append(list, refusals(err)...)
		}
	} else if errors.As(err, &one) {
		list = append(list, one)
	}
	return list
}

// keyOf is the key of a field of a webhook.Destination.
func keyOf(field string) string {
	field, header, isHeader := strings.Cut(field, "Headers[")
	parts := strings.Split(strings.TrimSuffix(field, "."), ".")
	for i, part := range parts {
		name, index, _ := strings.Cut(part, "[")
		switch name {
		case "URL", "TLS":
			name = strings.ToLower(name)
		default:
			name = strings.ToLower(name[:1]) + name[1:]
		}
		if parts[i] = name; index != "" && name != "certificates" {
			parts[i] += "[" + index
		}
	}
	key := strings.Join(parts, ".")
	if isHeader {
		name, err := strconv.Unquote(strings.TrimSuffix(header, "]"))
		if err != nil {
			name = header
		}
		key += ".headers." + name
	}
	return strings.Replace(key, "tls.certificates", "tls.certificate", 1)
}

var (
	errPair      = errors.New("want certificate and key, both in PEM, and of each other")
	errAuthority = errors.New("holds no certificate in PEM")
)

// Config returns what the files say. The error is errPair, errAuthority or both.
func (t *ClientTLS) Config() (*tls.Config, error) {
	config := &tls.Config{}
	var wrong error
	if t.Cert.Data != "" || t.Key.Data != "" {
		pair, err := tls.X509KeyPair([]byte(t.Cert.Data), []byte(t.Key.Data))
		if err != nil {
			wrong = errPair
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if t.CA.Data != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(t.CA.Data)) {
			wrong = errors.Join(wrong, errAuthority)
		}
	}
	return config, wrong
}

// clientTLS returns what t says, nil if it says nothing that is right.
func (c *checker) clientTLS(key string, t *ClientTLS) *tls.Config {
	if t == nil {
		return nil
	}
	config, err := t.Config()
	pair := t.Cert.Path != "" || t.Key.Path != "" || c.told(key+".certificate") || c.told(key+".key")
	if pair && c.both(key, t.Cert, t.Key) && errors.Is(err, errPair) && !c.lacks(key) {
		c.problem(key, "%v", errPair)
	}
	if errors.Is(err, errAuthority) {
		c.problem(key+".ca", "%v", errAuthority)
	}
	if err != nil {
		return nil
	}
	return config
}

func (c *checker) sources() {
	s := c.s
	if n := len(s.Sources); n == 0 || n > MaxSources {
		c.problem("sources", "1 to %d are allowed", MaxSources)
		return
	}
	known := map[string]bool{}
	for i := range s.Destinations {
		known[s.Destinations[i].ID] = true
	}
	// While an id is not known, any of those named may be meant.
	allKnown := !known[""] && !c.told("destinations")
	names, keys := map[string]string{}, map[string]string{}
	for i := range s.Sources {
		source, key := &s.Sources[i], fmt.Sprintf("sources[%d]", i)
		if c.name(key+".name", source.Name) {
			c.unique(names, source.Name, key+".name")
		}
		if n := len(source.Keys); n > MaxKeys || n == 0 && (s.Path != "" || s.Queue.Shared()) {
			c.problem(key+".keys", "1 to %d are allowed", MaxKeys)
		}
		for j, k := range source.Keys {
			at := fmt.Sprintf("%s.keys[%d]", key, j)
			if k == "" || len(k) > 255 || strings.ContainsFunc(k.Reveal(), func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }) {
				// Basic authentication ends it at a colon.
				c.problem(at, "want 1 to 255 visible characters of ASCII without colons")
			} else {
				c.unique(keys, k.Reveal(), at)
			}
		}
		if r := source.Rate; r != 0 && !(1.0/86_400 <= r && r <= 1_000_000) {
			c.problem(key+".rate", "one a day to 1,000,000 a second are allowed")
		}
		number(c, key+".burst", source.Burst, 0, 10_000_000)
		if source.ByteRate != 0 {
			number(c, key+".byteRate", source.ByteRate, 1<<10, 1<<40)
		}
		if source.Burst > 0 && source.Rate == 0 && !c.told(key+".rate") {
			c.problem(key+".burst", "needs a rate")
		}
		filter := webhook.Filter(source.Filter)
		for _, r := range refusals(filter.Validate()) {
			c.problem(key+".filter."+keyOf(r.Field), "%s", r.Problem)
		}
		if len(source.Destinations) > 1000 {
			c.problem(key+".destinations", "at most 1000 are allowed")
		}
		mine := map[string]bool{}
		for j, id := range source.Destinations {
			switch at := fmt.Sprintf("%s.destinations[%d]", key, j); {
			case !known[id] && allKnown:
				c.problem(at, "there is no destination with this id")
			case mine[id]:
				c.problem(at, "is given twice")
			}
			mine[id] = true
		}
	}
}
