package config

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
)

// Complete checks settings, sorts their lists, and sets derived fields. The error is an *Error.
func (s *Settings) Complete() error {
	r := newReader("", nil)
	r.check(s)
	return r.error(s.Path)
}

// error returns the problems in the order of the file, nil if there are none.
func (r *reader) error(path string) error {
	if len(r.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(r.problems, func(a, b Problem) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
	return &Error{Path: path, Problems: r.problems}
}

func (r *reader) check(s *Settings) {
	if r.unreadable("") {
		return // none of the file could be read
	}
	const baseURL = "want an http or https URL with a host and perhaps a path, and nothing else"
	r.address("listen", s.Listen)
	r.certificate("tls", s.TLS)
	r.refuse(s.BaseURL != "" && !isBaseURL(s.BaseURL), "baseURL", baseURL)
	r.refuse(s.Data == "", "data", "want a folder")
	r.queue(s)
	r.admin(&s.Admin)
	r.webhooks(&s.Webhooks)
	r.refuse(s.Tracing.Endpoint != "" && !isBaseURL(s.Tracing.Endpoint), "tracing.endpoint", baseURL+"; credentials go into tracing.headers")
	r.headers("tracing.headers", s.Tracing.Headers)
	keys := map[string]string{}
	r.keys("tenants.keys", s.Tenants.Keys, keys)
	r.sources(s, r.destinations(s), keys)
	slices.SortFunc(s.Sources, func(a, b Source) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Destinations, func(a, b Destination) int { return strings.Compare(a.ID, b.ID) })
}

// headers checks the headers at key. net/http refuses a request with an invalid header, and sends
// only one of two headers whose names differ only in case.
func (r *reader) headers(key string, headers map[string]signature.Secret) {
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		same := strings.ToLower(name)
		switch at := key + "." + name; {
		case !check.IsToken(name):
			r.problem(at, "is no name of a header: letters, digits and !#$%%&'*+-.^_`|~ are allowed")
		case seen[same]:
			r.problem(at, "is given twice: names of headers are the same in any case")
		case strings.ContainsFunc(headers[name].Reveal(), func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }):
			r.problem(at, "has a line break or another control character")
		}
		seen[same] = true
	}
}

func isBaseURL(text string) bool {
	u, err := webhook.ParseURL(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && u.RawQuery == "" && u.Fragment == ""
}

func (r *reader) address(key, address string) bool {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	r.refuse(err != nil, key, "want an address such as :8080 or localhost:8080")
	return err == nil
}

// admin checks the certificate even if the listener is off: after a reload that switches the
// listener off, it runs with this certificate until the restart.
func (r *reader) admin(a *Admin) {
	r.certificate("admin.tls", a.TLS)
	if a.Listen == Off {
		return
	}
	valid := r.address("admin.listen", a.Listen)
	r.refuse(a.Token == "" && valid && !isLoopback(a.Listen), "admin.token",
		"is required, as admin.listen is more than this machine's own address; or set that to localhost:8081 or off")
	r.refuse(a.Token != "" && (len(a.Token) < 16 || len(a.Token) > 1024 || !isVisible(a.Token)), "admin.token", "want 16 to 1024 visible characters of ASCII")
}

func isVisible(s signature.Secret) bool {
	return !strings.ContainsFunc(s.Reveal(), func(c rune) bool { return c <= ' ' || c > '~' })
}

// isLoopback reports whether a listener on this address can be reached only from this machine.
func isLoopback(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	ip, _ := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || ip.Unmap().IsLoopback()
}

// certificate checks c, which may be nil, and sets its Pair if both files are right.
func (r *reader) certificate(key string, c *Certificate) {
	if c == nil {
		return
	}
	r.refuse(c.Cert.Secret == "", key+".certificate", "is required")
	r.refuse(c.Key.Secret == "", key+".key", "is required")
	pair, err := tls.X509KeyPair([]byte(c.Cert.Secret), []byte(c.Key.Secret))
	if err == nil {
		c.Pair = &pair
	} else if c.Cert.Secret != "" && c.Key.Secret != "" {
		r.problem(key, "want a certificate and its key, both in PEM, that belong together")
	}
}

// clientTLS checks t, and returns the TLS settings that its files describe.
func (r *reader) clientTLS(key string, t *ClientTLS) *webhook.TLS {
	made, err := (&webhook.PEM{Certificate: t.Cert.Reveal(), Key: t.Key.Reveal(), CA: t.CA.Reveal()}).Parse()
	r.refuse(t.Cert.Secret == "" && t.Key.Secret == "" && r.unreadable(key+".certificate"), key+".key", "is required")
	r.refuse(t.Cert.Secret == "" && t.Key.Secret == "" && r.unreadable(key+".key"), key+".certificate", "is required")
	if err != nil {
		r.refused(strings.TrimSuffix(key, ".tls"), err)
		return nil
	}
	return made
}

// Config returns the TLS settings that the files describe. Call it only after Complete.
func (t *ClientTLS) Config() *tls.Config {
	made := newReader("", nil).clientTLS("", t)
	return &tls.Config{Certificates: made.Certificates, RootCAs: made.RootCAs}
}

// ProxyURL returns the setting Proxy as a URL. It returns nil if no proxy is set, or if the setting
// is not a URL; Complete reports the latter.
func (w *Webhooks) ProxyURL() *url.URL {
	u, err := webhook.ParseURL(w.Proxy.Reveal())
	if err != nil || w.Proxy == "" {
		return nil
	}
	return u
}

// webhooks checks the settings that become a webhook.Config, which New would refuse, and operations.
func (r *reader) webhooks(w *Webhooks) {
	r.refuse(w.Name != "" && !check.IsToken(w.Name), "webhooks.name", "want a product name: letters, digits and !#$%%&'*+-.^_`|~")
	proxy, err := webhook.ParseURL(w.Proxy.Reveal())
	switch {
	case w.Proxy == "":
	case err != nil:
		r.problem("webhooks.proxy", "%v", err)
	case proxy.Scheme != "http" && proxy.Scheme != "socks5", proxy.Hostname() == "":
		r.problem("webhooks.proxy", "want an http or socks5 URL with a host")
	}
	if w.Operations != "" {
		r.name("webhooks.operations", w.Operations)
	}
	if err := w.Retries.Validate(); err == nil {
		r.retries = w.Retries
	} else {
		r.refused("webhooks", err)
	}
}

func (r *reader) name(key, s string) {
	ok := s != "" && len(s) <= 255 && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
	r.refuse(!ok, key, "want 1 to 255 bytes of UTF-8 without control characters")
}

// destinations checks the destinations. It returns the key of each id, also of "", which stands for
// an id that is missing or could not be read.
func (r *reader) destinations(s *Settings) (ids map[string]string) {
	r.refuse(len(s.Destinations) > MaxDestinations, "destinations", "at most %d are allowed", MaxDestinations)
	ids = map[string]string{}
	for i := range s.Destinations {
		key := fmt.Sprintf("destinations[%d]", i)
		r.unique(ids, s.Destinations[i].ID, key+".id")
		r.destination(key, &s.Destinations[i])
	}
	return ids
}

// destination checks the destination at key. If it is valid, destination sets its Webhook.
func (r *reader) destination(key string, d *Destination) {
	r.name(under(key, "id"), d.ID)
	r.refuse(d.ID == "." || d.ID == "..", under(key, "id"), "is no name in the path of a URL, where the admin API needs it")
	made := d.Destination()
	w := &made
	w.ID, w.Secret, w.StandardSecrets, w.Retries = d.ID, d.Secret, d.StandardSecrets, cmp.Or(d.Retries, r.retries)
	w.Trusted = true // the operator wrote the configuration
	if d.TLS != nil {
		w.TLS = r.clientTLS(under(key, "tls"), d.TLS)
	}
	err := w.Validate()
	r.refused(key, err)
	if err == nil {
		d.Webhook = w
	}
}

// refused notes the problems in err, an error of package webhook about the value at key. It skips
// those of an id, which the reader has noted already.
func (r *reader) refused(key string, err error) {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range all.Unwrap() {
			r.refused(key, err)
		}
	} else if one, ok := errors.AsType[*webhook.ConfigError](err); ok && one.Field != "ID" {
		r.problem(under(key, KeyOf(one.Field)), "%s", one.Problem)
	}
}

var initials = regexp.MustCompile(`\b[A-Z]+`)

// KeyOf returns "endpoints[0].headers.Host" for `Endpoints[0].Headers["Host"]` of a destination.
func KeyOf(field string) string {
	field, header, isHeader := strings.Cut(field, ".Headers[")
	key := initials.ReplaceAllStringFunc(field, strings.ToLower)
	switch {
	case isHeader:
		name, _ := strconv.Unquote(strings.TrimSuffix(header, "]")) // it was quoted with %q
		return key + ".headers." + name
	case strings.HasPrefix(key, "tls.certificates"):
		return "tls.certificate"
	}
	return key
}

// unique notes a problem if another key has the same value as key, unless the value is empty. The
// map first has the first key of each value.
func (r *reader) unique(first map[string]string, value, key string) {
	other, taken := first[value]
	if !taken {
		first[value] = key
		return
	}
	if at := r.places[other]; at != nil {
		other = fmt.Sprintf("%s in line %d", other, at.Line)
	}
	r.refuse(value != "", key, "is the same as %s", other)
}

// keys checks the write keys at a key of the file. The map first has the place of each write key so
// far.
func (r *reader) keys(key string, keys []signature.Secret, first map[string]string) {
	r.refuse(len(keys) > MaxKeys, key, "at most %d are allowed", MaxKeys)
	for i, k := range keys {
		at := fmt.Sprintf("%s[%d]", key, i)
		// In Basic authentication, the key ends at a colon.
		r.refuse(k == "" || len(k) > 255 || !isVisible(k) || strings.Contains(k.Reveal(), ":"), at, "want 1 to 255 visible characters of ASCII without colons")
		r.unique(first, k.Reveal(), at)
	}
}

// sources checks the sources. The argument ids has the ids of the destinations, and keys the write
// keys that are taken.
func (r *reader) sources(s *Settings, ids, keys map[string]string) {
	n := len(s.Sources)
	r.refuse(n == 0 || n > MaxSources, "sources", "1 to %d are allowed", MaxSources)
	allKnown := ids[""] == "" && !r.unreadable("destinations")
	names := map[string]string{}
	for i := range s.Sources {
		source, key := &s.Sources[i], fmt.Sprintf("sources[%d]", i)
		r.name(key+".name", source.Name)
		r.unique(names, source.Name, key+".name")
		r.refuse(len(source.Keys) == 0 && (s.Path != "" || s.Queue.Shared()), key+".keys", "1 to %d are allowed", MaxKeys)
		r.keys(key+".keys", source.Keys, keys)
		rate := source.Rate
		r.refuse(rate != 0 && !(1.0/86_400 <= rate && rate <= 1_000_000), key+".rate", "one a day to 1,000,000 a second are allowed")
		r.refuse(source.Burst > 0 && rate == 0 && !r.unreadable(key+".rate"), key+".burst", "needs a rate")
		r.refused(key+".filter", source.Filter.Validate())
		r.refuse(len(source.Destinations) > 1000, key+".destinations", "at most 1000 are allowed")
		mine := map[string]string{}
		for j, id := range source.Destinations {
			at := fmt.Sprintf("%s.destinations[%d]", key, j)
			if ids[id] == "" && allKnown { // otherwise id may be one that could not be read
				r.problem(at, "there is no destination with this id")
			} else {
				r.unique(mine, id, at)
			}
		}
	}
}
