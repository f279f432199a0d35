package signature

import (
	"crypto/ed25519"
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

// The headers of Standard Webhooks, as its specification spells them. A request has all
// three.
const (
	// StandardID is the message's id, which is the same in all attempts. It consists of
	// visible ASCII characters other than a full stop.
	StandardID = "webhook-id"
	// StandardTimestamp is the time of the attempt, in seconds since 1970.
	StandardTimestamp = "webhook-timestamp"
	// StandardSignature is a list of signatures, one for each secret, separated by single
	// spaces. A signature is "v1," and the base64 of an HMAC-SHA256, or "v1a," and the
	// base64 of an Ed25519 signature.
	StandardSignature = "webhook-signature"
)

// DefaultTolerance is how far the time of a request may differ from the receiver's clock,
// in either direction. The specification gives no number; its reference libraries use
// five minutes.
const DefaultTolerance = 5 * time.Minute

const (
	// The prefixes of a shared secret, a private key and a public key.
	sharedPrefix, privatePrefix, publicPrefix = "whsec_", "whsk_", "whpk_"
	// The specification's bounds for a shared secret, in bytes.
	minSecret, maxSecret = 24, 64

	// The prefix of a signature by a shared secret, and that of a signature by a private
	// key.
	versionShared, versionKey = "v1,", "v1a,"

	// The maximum lengths of two headers, in bytes. A longer header is malformed. The
	// longest id that a Forwarder sends has 765 bytes.
	maxStandardID        = 1 << 10
	maxStandardSignature = 4 << 10
	// maxKeySignatures bounds how many signatures by private keys are checked in one
	// request. The rest are ignored. A check takes about 50 us for each public key.
	maxKeySignatures = 10
)

// NewStandardSecret returns a random secret for Standard Webhooks: "whsec_" and
// the base64 of 32 bytes.
func NewStandardSecret() Secret {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	return Secret(sharedPrefix + base64.StdEncoding.EncodeToString(key[:]))
}

// NewStandardPrivateKey returns a random private key for Standard Webhooks: "whsk_" and the
// base64 of the 64 bytes of an [ed25519.PrivateKey]. A receiver gets only the public key,
// so it can verify, but not sign.
func NewStandardPrivateKey() Secret {
	_, private, _ := ed25519.GenerateKey(nil) // never fails
	return Secret(privatePrefix + base64.StdEncoding.EncodeToString(private))
}

// StandardPublicKey returns the public key of a private key, for receivers: "whpk_" and the
// base64 of 32 bytes. The error is [ErrNoSecret] or [ErrSecretFormat].
func StandardPublicKey(private Secret) (string, error) {
	k, err := standardKeyOf(private)
	if err == nil && k.private == nil {
		err = ErrSecretFormat
	}
	if err != nil {
		return "", err
	}
	return publicPrefix + base64.StdEncoding.EncodeToString(k.private.Public().(ed25519.PublicKey)), nil
}

// A standardKey is a decoded secret. Exactly one of its fields is set.
type standardKey struct {
	shared  []byte
	private ed25519.PrivateKey
	public  ed25519.PublicKey
}

// standardKeyOf decodes a secret of Standard Webhooks.
func standardKeyOf(secret Secret) (k standardKey, err error) {
	if secret == "" {
		return k, ErrNoSecret
	}
	prefix, text, _ := strings.Cut(string(secret), "_")
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || strings.ContainsAny(text, "\r\n") { // the decoder skips line ends
		return k, ErrSecretFormat
	}
	switch prefix += "_"; {
	case prefix == sharedPrefix && len(key) >= minSecret && len(key) <= maxSecret:
		k.shared = key
	case prefix == publicPrefix && len(key) == ed25519.PublicKeySize:
		k.public = key
	case prefix == privatePrefix && len(key) == ed25519.SeedSize:
		k.private = ed25519.NewKeyFromSeed(key)
	case prefix == privatePrefix && len(key) == ed25519.PrivateKeySize:
		// The public half must belong to the private half: signing with a different one
		// would reveal the private key.
		if k.private = ed25519.NewKeyFromSeed(key[:ed25519.SeedSize]); !k.private.Equal(ed25519.PrivateKey(key)) {
			return standardKey{}, ErrSecretFormat
		}
	default:
		return k, ErrSecretFormat
	}
	return k, nil
}

// standardKeys decodes secrets for signing, or for verifying if the argument sign is false.
func standardKeys(secrets []Secret, sign bool) ([]standardKey, error) {
	if len(secrets) == 0 {
		return nil, ErrNoSecret
	}
	keys := make([]standardKey, len(secrets))
	for i, s := range secrets {
		k, err := standardKeyOf(s)
		if err == nil && (sign && k.public != nil || !sign && k.private != nil) {
			err = ErrSecretFormat
		}
		if err != nil {
			return nil, err
		}
		keys[i] = k
	}
	return keys, nil
}

// A StandardSigner signs many messages according to Standard Webhooks, with one or more
// secrets. It prepares the keys only once. Its methods may be called concurrently.
type StandardSigner struct {
	keys   []standardKey
	states sync.Pool // pool of *standardState
}

// A standardState holds the memory that Append needs for one message. States are pooled, so
// that signing with a shared secret allocates nothing.
type standardState struct {
	macs []hash.Hash // one for each secret; nil for a private key
	text []byte      // the signed text: id and timestamp; for a private key also the body
	sum  [sha256.Size]byte
}

// maxStandardText is the size of the largest buffer, in bytes, that a pooled
// standardState keeps.
const maxStandardText = 64 << 10

// NewStandardSigner returns a StandardSigner that makes one signature with each of the
// secrets, in their order. A secret is a shared secret, such as [NewStandardSecret] makes,
// or a private key, such as [NewStandardPrivateKey] makes. Use several secrets while one is
// being replaced: the receiver accepts a message if any signature is valid. The error is
// [ErrNoSecret] or [ErrSecretFormat].
func NewStandardSigner(secrets ...Secret) (*StandardSigner, error) {
	keys, err := standardKeys(secrets, true)
	if err != nil {
		return nil, err
	}
	s := &StandardSigner{keys: keys}
	s.states.New = func() any {
		st := &standardState{macs: make([]hash.Hash, len(keys))}
		for i, k := range keys {
			if k.shared != nil {
				st.macs[i] = hmac.New(sha256.New, k.shared)
			}
		}
		return st
	}
	return s, nil
}

// Append appends to dst the value of [StandardSignature] for a message with the given id
// and one attempt at the given time. The time is rounded down to seconds. The id must not
// contain a full stop, which Append does not check: with a full stop in the id, the same
// signature would also be valid for another id, time and body. So [VerifyStandard] refuses
// such ids.
func (s *StandardSigner) Append(dst []byte, id string, at time.Time, body []byte) []byte {
	st := s.states.Get().(*standardState)
	st.text = append(st.text[:0], id...)
	st.text = append(st.text, '.')
	st.text = strconv.AppendInt(st.text, at.Unix(), 10)
	st.text = append(st.text, '.')
	head := len(st.text)
	for i, mac := range st.macs {
		if i > 0 {
			dst = append(dst, ' ')
		}
		if mac == nil {
			if len(st.text) == head {
				st.text = append(st.text, body...)
			}
			dst = append(dst, versionKey...)
			dst = base64.StdEncoding.AppendEncode(dst, ed25519.Sign(s.keys[i].private, st.text[:head+len(body)]))
			continue
		}
		mac.Reset()
		mac.Write(st.text[:head])
		mac.Write(body)
		dst = append(dst, versionShared...)
		dst = base64.StdEncoding.AppendEncode(dst, mac.Sum(st.sum[:0]))
	}
	if cap(st.text) <= maxStandardText {
		s.states.Put(st)
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

// VerifyStandard returns nil if header has the three headers of Standard Webhooks with a
// valid signature of body, made with any of the secrets. The time in the headers may differ
// from the current time by at most tolerance, in either direction. A tolerance of zero or
// less means [DefaultTolerance]. Within the tolerance, a captured request can be replayed.
// To prevent that, remember each id for twice the tolerance: if the sender's clock is ahead,
// a request may be accepted for that long.
//
// The secrets are secrets shared with the sender, and public keys of the sender in the form
// that [StandardPublicKey] returns.
//
// The error is [ErrNoSecret] if there is no secret or any secret is empty, and
// [ErrSecretFormat] if any secret is malformed. It is [ErrMissing] if a header is missing
// or empty. It is [ErrMalformed] if a header occurs twice or does not have the required
// form, or if no signature has the version v1 or v1a. If the headers pass these checks, the
// error is [ErrTooOld], [ErrTooNew] or [ErrMismatch]. Signatures of other versions are
// ignored, and so are signatures of v1a after the tenth. The time that VerifyStandard takes
// does not reveal how much of a signature is correct.
func VerifyStandard(body []byte, header http.Header, tolerance time.Duration, secrets ...Secret) error {
	keys, err := standardKeys(secrets, false)
	if err != nil {
		return err
	}
	headers, err := parseStandardHeaders(header, tolerance, time.Now())
	if err != nil {
		return err
	}
	return headers.verify(body, keys)
}

// standardHeaders are the parsed headers of a request.
type standardHeaders struct {
	head   string // the signed text before the body: id and timestamp
	shared [][sha256.Size]byte
	byKey  [][ed25519.SignatureSize]byte
}

// parseStandardHeaders parses the headers. It returns the errors of VerifyStandard that do
// not depend on the body.
func parseStandardHeaders(header http.Header, tolerance time.Duration, now time.Time) (standardHeaders, error) {
	var values [3]string
	var err error
	for i, name := range []string{StandardID, StandardTimestamp, StandardSignature} {
		switch vs := header.Values(name); {
		case len(vs) == 0 || len(vs) == 1 && vs[0] == "":
			return standardHeaders{}, ErrMissing
		case len(vs) > 1:
			err = ErrMalformed
		default:
			values[i] = vs[0]
		}
	}
	id, timestamp, signatures := values[0], values[1], values[2]
	at, ok := parseTimestamp(timestamp)
	if err != nil || !ok || !wellFormedID(id) || len(signatures) > maxStandardSignature {
		return standardHeaders{}, ErrMalformed
	}
	c := standardHeaders{head: id + "." + timestamp + "."}
	for s := range strings.SplitSeq(signatures, " ") {
		var sum [sha256.Size]byte
		if decodeSignature(sum[:], s, versionShared) {
			c.shared = append(c.shared, sum)
		}
		var signature [ed25519.SignatureSize]byte
		if len(c.byKey) < maxKeySignatures && decodeSignature(signature[:], s, versionKey) {
			c.byKey = append(c.byKey, signature)
		}
	}
	if len(c.shared)+len(c.byKey) == 0 {
		return standardHeaders{}, ErrMalformed
	}
	if tolerance <= 0 {
		tolerance = DefaultTolerance
	}
	switch {
	case now.Sub(at) > tolerance:
		return standardHeaders{}, ErrTooOld
	case at.Sub(now) > tolerance:
		return standardHeaders{}, ErrTooNew
	}
	return c, nil
}

// verify checks the signatures with each key.
func (c standardHeaders) verify(body []byte, keys []standardKey) error {
	match := 0
	var text []byte // the complete signed text, for public keys
	for _, k := range keys {
		if k.shared != nil {
			mac := hmac.New(sha256.New, k.shared)
			mac.Write([]byte(c.head))
			mac.Write(body)
			var sum [sha256.Size]byte
			want := mac.Sum(sum[:0])
			for i := range c.shared {
				match |= subtle.ConstantTimeCompare(want, c.shared[i][:])
			}
			continue
		}
		if text == nil && len(c.byKey) > 0 {
			text = append([]byte(c.head), body...)
		}
		for i := range c.byKey {
			if ed25519.Verify(k.public, text, c.byKey[i][:]) {
				match = 1
			}
		}
	}
	if match == 0 {
		return ErrMismatch
	}
	return nil
}

// decodeSignature decodes s, a signature of the given version, into dst. It reports whether
// s is the canonical base64 of exactly as many bytes as dst has.
func decodeSignature(dst []byte, s, version string) bool {
	text, ok := strings.CutPrefix(s, version)
	if !ok || len(text) != base64.StdEncoding.EncodedLen(len(dst)) || strings.ContainsAny(text, "\r\n") {
		return false
	}
	var buf [ed25519.SignatureSize + 2]byte
	n, err := base64.StdEncoding.Strict().Decode(buf[:], []byte(text))
	return err == nil && copy(dst, buf[:n]) == len(dst) && n == len(dst)
}

// parseTimestamp parses seconds since 1970. It accepts only digits without leading zeros,
// because the signature covers the text and not the number.
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
