package webhook

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/signature"
)

// appendStandard appends the header lines of Standard Webhooks for an attempt that starts now:
// webhook-id, webhook-timestamp and webhook-signature, each with its CRLF.
func appendStandard(dst []byte, s *signature.StandardSigner, id string, now time.Time, body []byte) []byte {
	id = standardID(id)
	dst = append(dst, signature.StandardID+": "...)
	dst = append(dst, id...)
	dst = append(dst, "\r\n"+signature.StandardTimestamp+": "...)
	dst = strconv.AppendInt(dst, now.Unix(), 10)
	dst = append(dst, "\r\n"+signature.StandardSignature+": "...)
	dst = s.Append(dst, id, now, body)
	return append(dst, "\r\n"...)
}

// standardID returns the webhook-id for the ID of a delivery. An ID may be any text, but a header
// value may not. A full stop is not allowed either, because it separates the id from the rest of
// the signed text. So full stops, percent signs and all bytes but visible ASCII are
// percent-encoded. Different IDs stay different.
func standardID(id string) string {
	plain := true
	for i := range len(id) {
		plain = plain && isPlain(id[i])
	}
	if plain {
		return id
	}
	var b strings.Builder
	for i := range len(id) {
		if isPlain(id[i]) {
			b.WriteByte(id[i])
		} else {
			fmt.Fprintf(&b, "%%%02X", id[i])
		}
	}
	return b.String()
}

func isPlain(c byte) bool { return c > ' ' && c < 0x7f && c != '.' && c != '%' }
