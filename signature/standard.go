package signature

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"hash"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The headers of Standard Webhooks, spelled as its specification does. A
// request carries all three.
const (
	// StandardID is the message's id, the same in all attempts: visible ASCII
	// characters other than a full stop.
	StandardID = "webhook-id"
	// StandardTimestamp is when the attempt was made, in seconds since 1970.
	StandardTimestamp = "webhook-timestamp"
	// StandardSignature is a list of signatures, separated by single spaces:
	// "v1," and the base64 of an HMAC-SHA256, for each of the secrets.
	StandardSignature = "webhook-signature"
)

// DefaultTolerance is how far the time of a request may be from that of who
// verifies it, into the past and into the future, where nothing else is said.
// The specification names no figure; its reference libraries have this one.
const DefaultTolerance = 5 * time.Minute

const (
	secretPrefix = "whsec_"
	// Bytes of a secret, by the specification.
	minSecret, maxSecret = 24, 64

	version      = "v1,"
	standardSize = (sha256.Size + 2) / 3 * 4 // of a signature behind its version

	// Bytes of headers that are looked at. The longest id that this project
	// sends has 765.
	maxStandardID        = 1 << 10
	maxStandardSignature = 4 << 10
)

// NewStandardSecret returns a random secret for Standard Webhooks: "whsec_" and
// the base64 of 32 bytes.
func NewStandardSecret() Secret {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	return Secret(secretPrefix + base64.StdEncoding.EncodeToString(key[:]))
}

// standardKey decodes a secret of Standard Webhooks.
func standardKey(secret Secret) ([]byte, error) {
	if secret == "" {
		return nil, ErrNoSecret
	}
	text, ok := strings.CutPrefix(string(secret), secretPrefix)
	if !ok || strings.ContainsAny(text, "\r\n") { // the decoder passes over line ends
		return nil, ErrSecretFormat
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) < minSecret || len(key) > maxSecret {
		return nil, ErrSecretFormat
	}
	return key, nil
}

func standardKeys(secrets []Secret) ([][]byte, error) {
	if len(secrets) == 0 {
		return nil, ErrNoSecret
	}
	keys := make([][]byte, len(secrets))
	for i, s := range secrets {
		var err error
		if keys[i], err = standardKey(s); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// A StandardSigner signs many messages by Standard Webhooks, with one or more
// secrets, whose keys it prepares once. Its methods may be called concurrently.
type StandardSigner struct {
	states sync.Pool // of *standardState
}

// A standardState has an HMAC for each secret, and room for what is fed to it.
type standardState struct {
	macs []hash.Hash
	head []byte // id and timestamp, as they are signed
	sum  [sha256.Size]byte
}

// NewStandardSigner returns a StandardSigner that makes a signature with each
// of secrets, in their order. There are several while a secret is being
// replaced: the receiver takes a message if any signature is good. The error is
// [ErrNoSecret] or [ErrSecretFormat].
func NewStandardSigner(secrets ...Secret) (*StandardSigner, error) {
	keys, err := standardKeys(secrets)
	if err != nil {
		return nil, err
	}
	s := &StandardSigner{}
	s.states.New = func() any {
		st := &standardState{}
		for _, key := range keys {
			st.macs = append(st.macs, hmac.New(sha256.New, key))
		}
		return st
	}
	return s, nil
}

// Append appends to dst the value of [StandardSignature] for the message id
// and the attempt at the time at, of which whole seconds count. The id is
// signed as it is: one with a full stop in it would let a signature stand for
// another id, time and body, and is refused by [VerifyStandard].
func (s *StandardSigner) Append(dst []byte, id string, at time.Time, body []byte) []byte {
	st := s.states.Get().(*standardState)
	defer s.states.Put(st)
	st.head = append(st.head[:0], id...)
	st.head = append(st.head, '.')
	st.head = strconv.AppendInt(st.head, at.Unix(), 10)
	st.head = append(st.head, '.')
	for i, mac := range st.macs {
		if i > 0 {
			dst = append(dst, ' ')
		}
		mac.Reset()
		mac.Write(st.head)
		mac.Write(body)
		dst = append(dst, version...)
		dst = base64.StdEncoding.AppendEncode(dst, mac.Sum(st.sum[:0]))
	}
	return dst
}

// SignStandard returns the value of [StandardSignature] for one message; see
// [StandardSigner.Append] and [NewStandardSigner].
func SignStandard(body []byte, id string, at time.Time, secrets ...Secret) (string, error) {
	s, err := NewStandardSigner(secrets...)
	if err != nil {
		return "", err
	}
	return string(s.Append(nil, id, at, body)), nil
}

// VerifyStandard returns nil if header has the three headers of Standard
// Webhooks, with a good signature of body made with any of secrets, and a time
// that is at most tolerance from now, in either direction. A tolerance of zero
// or less means [DefaultTolerance]. Within it a request can be replayed: who
// minds remembers the ids for as long.
//
// The error is [ErrNoSecret] or [ErrSecretFormat] if that holds for any of
// secrets, whatever the others are; [ErrMissing] if one of the headers is
// missing or empty; [ErrMalformed] if one is there twice, or does not have its
// form, or no signature has the version v1; [ErrTooOld] or [ErrTooNew]; else
// [ErrMismatch]. Signatures of other versions are passed over. How long
// VerifyStandard takes does not tell how much of a signature is right.
func VerifyStandard(body []byte, header http.Header, tolerance time.Duration, secrets ...Secret) error {
	keys, err := standardKeys(secrets)
	if err != nil {
		return err
	}
	claim, err := standardClaimOf(header, tolerance, time.Now())
	if err != nil {
		return err
	}
	return claim.verify(body, keys)
}

// A standardClaim is what a request says of itself by Standard Webhooks.
type standardClaim struct {
	head       string // what is signed before the body
	signatures string
}

// standardClaimOf reads the headers and returns the errors of VerifyStandard
// that do not depend on the body.
func standardClaimOf(header http.Header, tolerance time.Duration, now time.Time) (standardClaim, error) {
	var values [3]string
	var err error
	for i, name := range []string{StandardID, StandardTimestamp, StandardSignature} {
		switch vs := header.Values(name); {
		case len(vs) == 0 || len(vs) == 1 && vs[0] == "":
			return standardClaim{}, ErrMissing
		case len(vs) > 1:
			err = ErrMalformed
		default:
			values[i] = vs[0]
		}
	}
	id, timestamp, signatures := values[0], values[1], values[2]
	at, ok := parseTimestamp(timestamp)
	if err != nil || !ok || !wellFormedID(id) || len(signatures) > maxStandardSignature {
		return standardClaim{}, ErrMalformed
	}
	found := false
	for s := range strings.SplitSeq(signatures, " ") {
		_, ok := v1(s)
		found = found || ok
	}
	if !found {
		return standardClaim{}, ErrMalformed
	}
	if tolerance <= 0 {
		tolerance = DefaultTolerance
	}
	switch {
	case now.Sub(at) > tolerance:
		return standardClaim{}, ErrTooOld
	case at.Sub(now) > tolerance:
		return standardClaim{}, ErrTooNew
	}
	return standardClaim{id + "." + timestamp + ".", signatures}, nil
}

// verify compares each signature with that of each key.
func (c standardClaim) verify(body []byte, keys [][]byte) error {
	match := 0
	for _, key := range keys {
		var buf [standardSize]byte
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(c.head))
		mac.Write(body)
		want := base64.StdEncoding.AppendEncode(buf[:0], mac.Sum(nil))
		for s := range strings.SplitSeq(c.signatures, " ") {
			if got, ok := v1(s); ok {
				match |= subtle.ConstantTimeCompare(want, []byte(got))
			}
		}
	}
	if match == 0 {
		return ErrMismatch
	}
	return nil
}

// v1 returns what is behind the version of a signature, if it is one of
// version 1 in its form.
func v1(s string) (string, bool) {
	text, ok := strings.CutPrefix(s, version)
	if !ok || len(text) != standardSize || text[standardSize-1] != '=' {
		return "", false
	}
	for i := range standardSize - 1 {
		c := text[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '+' || c == '/') {
			return "", false
		}
	}
	return text, true
}

// parseTimestamp reads seconds since 1970 in the one form that they are signed
// in: digits, without zeros before them.
func parseTimestamp(s string) (time.Time, bool) {
	if s == "" || len(s) > 12 || s[0] == '0' && len(s) > 1 {
		return time.Time{}, false
	}
	n := int64(0)
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return time.Time{}, false
		}
		n = 10*n + int64(s[i]-'0')
	}
	return time.Unix(n, 0), true
}

func wellFormedID(id string) bool {
	if len(id) > maxStandardID {
		return false
	}
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c >= 0x7f || c == '.' {
			return false
		}
	}
	return true
}
