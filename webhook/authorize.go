package webhook

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook/internal/wire"
)

// authorize calls Destination.Authorize for one request to e. It appends to s.lines the headers
// that Authorize has set, and adds their values to s.secrets, which are redacted.
func (s *sender) authorize(ctx context.Context, deadline time.Time, e *endpoint) error {
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, wire.ErrTimeout)
	defer cancel()
	s.authorized = make(http.Header)
	err := noPanic("Authorize", func() error { return e.authorize(ctx, e.raw, s.authorized) })
	if err == nil {
		err = context.Cause(ctx) // Authorize took all the time of the attempt
	}
	if n := len(s.authorized); err == nil && n > MaxHeaders {
		err = refuse("Authorize", "has set %d headers; at most %d are allowed", n, MaxHeaders)
	}
	secrets := slices.Clone(e.secrets)
	seen := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(s.authorized)) {
		field, canonical := fmt.Sprintf("Authorize[%q]", name), http.CanonicalHeaderKey(name)
		var value string
		for _, value = range s.authorized[name] {
			secrets = append(secrets, headerSecrets(canonical, value)...)
		}
		n := len(s.authorized[name])
		wrong := checkHeader(field, name, value)
		switch {
		case err != nil:
			continue
		case n != 1:
			err = refuse(field, "has %d values; 1 is allowed", n)
		case wrong != nil:
			err = wrong
		case e.header[canonical] != nil, canonical == headerTraceParent, canonical == headerTraceState:
			err = refuse(field, "may not be replaced")
		case seen[canonical]:
			err = refuse(field, "is given twice")
		}
		seen[canonical] = true
		s.lines = appendHeader(s.lines, canonical, value)
	}
	s.secrets = redactable(secrets)
	return err
}

// noPanic calls f, and turns a panic in it into an error.
func noPanic(name string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("webhook: %s panicked: %v", name, v)
		}
	}()
	return f()
}

// headerSecrets returns the texts to redact for a header: its value and, for Authorization, also
// the credentials behind the scheme.
func headerSecrets(canonical, value string) []string {
	if _, credentials, ok := strings.Cut(value, " "); ok && canonical == "Authorization" {
		return []string{value, credentials}
	}
	return []string{value}
}

// redactable returns the secrets that are long enough to be redacted, the longest first.
func redactable(secrets []string) []string {
	secrets = slices.DeleteFunc(secrets, func(s string) bool { return len(s) < minSecret })
	slices.SortFunc(secrets, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return secrets
}
