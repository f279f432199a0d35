package collector

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strings"
)

// Keys returns a function for Config.Sources, for write keys that do not change. The function finds
// a key by its hash, so that the time of a call reveals nothing about the keys. Keys copies the
// map, and ignores an empty key.
func Keys(sources map[string]Source) func(context.Context, string) (Source, error) {
	byHash := make(map[[sha256.Size]byte]Source, len(sources))
	for key, source := range sources {
		if key != "" {
			source.Destinations = slices.Clone(source.Destinations)
			byHash[sha256.Sum256([]byte(key))] = source
		}
	}
	return func(_ context.Context, key string) (Source, error) {
		source, ok := byHash[sha256.Sum256([]byte(key))]
		if !ok {
			return Source{}, ErrUnknownKey
		}
		return source, nil
	}
}

// id returns the Source for the events of s: its Name or, if that is empty, a digest of
// the write key.
func (s *Source) id(key string) string {
	if s.Name != "" {
		return s.Name
	}
	sum := sha256.Sum256([]byte(key))
	return "key:" + base64.RawURLEncoding.EncodeToString(sum[:12])
}

// source finds the source of a write key. key is "" if the request has none.
func (h *Handler) source(ctx context.Context, key string) (Source, error) {
	if key == "" {
		return Source{}, refuse(http.StatusUnauthorized, "unknown_write_key", "there is no write key")
	}
	source, err := h.config.Sources(ctx, key)
	if err != nil && !errors.Is(err, ErrUnknownKey) {
		if errors.Is(ctx.Err(), context.Canceled) {
			// The client is gone, so this is no failure of the look-up.
			return Source{}, later("the request was given up")
		}
		h.lookups.bad(err)
		return Source{}, later("the write key cannot be looked up now")
	}
	h.lookups.good()
	if err != nil {
		return Source{}, refuse(http.StatusUnauthorized, "unknown_write_key", "the write key is unknown")
	}
	return source, nil
}

// basicKey returns the user name of Basic authentication, or "" if there is none. It accepts
// credentials without a colon and base64 without padding, because some clients send them.
func basicKey(header http.Header) string {
	scheme, credentials, _ := strings.Cut(header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Basic") {
		return ""
	}
	credentials = strings.TrimRight(strings.Trim(credentials, " "), "=")
	b, err := base64.RawStdEncoding.DecodeString(credentials)
	if err != nil {
		return ""
	}
	key, _, _ := strings.Cut(string(b), ":")
	return key
}
