package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/signature"
)

// check says whether the signatures of a webhook are valid. All are of the same body.
func (p *printer) check(body []byte, h http.Header) string {
	plain := func(body []byte) error { return signature.Verify(body, h.Get(signature.Header), p.secrets...) }
	standard := func(body []byte) error { return signature.VerifyStandard(body, h, 0, p.standard...) }
	plainErr, standardErr := plain(body), standard(body)
	var found []string
	add := func(what string) { found = append(found, what) }
	switch {
	case h.Get(signature.Header) == "":
	case len(p.secrets) == 0:
		add("signed, but not checked: listen has no --secret")
	case plainErr == nil:
		add("signature ok")
	case plainErr == signature.ErrMalformed:
		add("X-Signature wrong: not 40 lower-case hex digits")
	default:
		add("X-Signature wrong: " + mismatch(body, plain, standardErr == nil))
	}
	switch {
	case h.Get(signature.StandardSignature) == "":
	case len(p.standard) == 0:
		add("signed by Standard Webhooks, but not checked: listen has no --standard-secret")
	case standardErr == nil:
		add("Standard Webhooks signature ok")
	case standardErr == signature.ErrMismatch && !p.checkable(h):
		add("webhook-signature wrong: of version " + versions(h) + ", but v1 is checked with a shared secret, whsec_, and v1a with a public key, whpk_")
	case standardErr == signature.ErrMismatch:
		add("webhook-signature wrong: " + mismatch(body, standard, plainErr == nil))
	default:
		add(fault(h, standardErr))
	}
	return cmp.Or(strings.Join(found, ", "), "unsigned")
}

// mismatch says why a well-formed signature does not match body. verify returns nil for the body that
// was signed. whole says that another signature proves that body is unchanged.
func mismatch(body []byte, verify func([]byte) error, whole bool) string {
	var compact bytes.Buffer
	switch {
	case whole:
		return "made with another secret; the other signature shows that the body is as it was signed"
	case json.Compact(&compact, body) == nil && verify(compact.Bytes()) == nil:
		return "the body was reformatted after it was signed: without white space the signature is good"
	}
	return "made with another secret, or of another body"
}

// fault says which header of Standard Webhooks is wrong, and why.
func fault(h http.Header, err error) string {
	headers := []string{signature.StandardID, signature.StandardTimestamp, signature.StandardSignature}
	for _, name := range headers {
		switch n := len(h.Values(name)); {
		case h.Get(name) == "":
			return name + " is missing"
		case n > 1:
			return fmt.Sprintf("%s is there %d times", name, n)
		}
	}
	seconds, wrong := strconv.ParseInt(h.Get(signature.StandardTimestamp), 10, 64)
	off := time.Since(time.Unix(seconds, 0)).Round(time.Second)
	switch {
	case wrong != nil:
		return "webhook-timestamp wrong: not a time in seconds since 1970"
	case err == signature.ErrTooOld:
		return fmt.Sprintf("webhook-timestamp wrong: %v ago, more than %v; it was sent again late, or a clock is wrong", off, signature.DefaultTolerance)
	case err == signature.ErrTooNew:
		return fmt.Sprintf("webhook-timestamp wrong: %v from now, more than %v; a clock is wrong", -off, signature.DefaultTolerance)
	}
	if has := versions(h); !strings.Contains(has, "v1") {
		return "webhook-signature wrong: neither v1 nor v1a, but " + has
	}
	return "webhook-signature wrong: not v1, and the base64 of 32 bytes, nor v1a, and that of 64; or webhook-id holds a full stop or a space"
}

// versions lists the versions of the signatures of Standard Webhooks.
func versions(h http.Header) string {
	var list []string
	for s := range strings.SplitSeq(h.Get(signature.StandardSignature), " ") {
		version, _, _ := strings.Cut(s, ",")
		list = append(list, clean(version))
	}
	return strings.Join(list, ", ")
}

// checkable reports whether the printer has a key for the version of one of the signatures.
func (p *printer) checkable(h http.Header) bool {
	has := strings.Split(versions(h), ", ")
	return slices.ContainsFunc(p.standard, func(s signature.Secret) bool {
		if strings.HasPrefix(string(s), "whpk_") {
			return slices.Contains(has, "v1a")
		}
		return slices.Contains(has, "v1")
	})
}
