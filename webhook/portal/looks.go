package portal

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/hookferry/analytics/check"
)

const (
	maxName = 60       // bytes of Config.Name
	maxLogo = 64 << 10 // bytes of Config.Logo
	maxWord = 1000     // bytes of a text of Config.Words
)

func (c *Config) checkLooks(wrong *check.Faults) {
	wrong.Refuse(len(c.Name) > maxName, "Name", "has %d bytes, the limit is %d", len(c.Name), maxName)
	wrong.Refuse(len(c.Logo) > maxLogo, "Logo", "has %d bytes, the limit is %d", len(c.Logo), maxLogo)
	wrong.Refuse(c.Logo != nil && logoType(c.Logo) == "", "Logo", "is none of SVG, PNG, JPEG and WebP")
	themes := []Theme{ThemeChoice, ThemeLight, ThemeDark}
	wrong.Refuse(!slices.Contains(themes, c.Theme), "Theme", "is %q, and none of %q", c.Theme, themes)
	wrong.Add("Accent", colourProblem(c.Accent, lightPage))
	wrong.Add("AccentDark", colourProblem(c.AccentDark, darkPage))
	c.checkWords(wrong)
	c.Language = cmp.Or(c.Language, "en")
	wrong.Refuse(strings.Trim(strings.ToLower(c.Language), "abcdefghijklmnopqrstuvwxyz0123456789-") != "", "Language", "is %q; a language tag such as \"pt-BR\" is allowed", c.Language)
}

func (c *Config) checkWords(wrong *check.Faults) {
	if c.Words == nil {
		return
	}
	c.Words = maps.Clone(c.Words)
	known := Texts()
	for _, english := range slices.Sorted(maps.Keys(c.Words)) {
		_, found := slices.BinarySearch(known, english)
		wrong.Refuse(!found, "Words", "has %.80q, which is no text of the page; see Texts", english)
		wrong.Refuse(len(c.Words[english]) > maxWord, "Words", "has %d bytes for %.80q, the limit is %d", len(c.Words[english]), english, maxWord)
	}
}

// logoType is the content type of an image, "" if it is none that is allowed.
func logoType(image []byte) string {
	kind := http.DetectContentType(image)
	switch kind {
	case "image/png", "image/jpeg", "image/webp":
		return kind
	}
	if start := bytes.TrimSpace(image); bytes.HasPrefix(start, []byte("<svg")) || bytes.HasPrefix(start, []byte("<?xml")) {
		return "image/svg+xml"
	}
	return ""
}

// The colours of the page behind texts, which the style sheet has, too.
const lightPage, darkPage = "#f6f7f8", "#151a1d"

// colourProblem says why a colour cannot be used for links on a page of another colour, "" if it
// can.
func colourProblem(colour, page string) string {
	if colour == "" {
		return ""
	}
	is, ok := luminance(colour)
	behind, _ := luminance(page)
	if !ok {
		return fmt.Sprintf("is %q; a colour such as #0b5f7c is allowed", colour)
	}
	if contrast := (max(is, behind) + 0.05) / (min(is, behind) + 0.05); contrast < 4.5 {
		return fmt.Sprintf("is %s, whose contrast to the page is %.1f; at least 4.5 is needed", colour, contrast)
	}
	return ""
}

// luminance is the relative luminance of a colour, as the Web Content Accessibility Guidelines define it.
func luminance(colour string) (l float64, ok bool) {
	n, err := strconv.ParseUint(strings.TrimPrefix(colour, "#"), 16, 32)
	if err != nil || len(colour) != 7 || colour[0] != '#' {
		return 0, false
	}
	for i, weight := range []float64{0.0722, 0.7152, 0.2126} { // blue, green, red
		c := float64(n>>(8*i)&0xff) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		l += weight * c
	}
	return l, true
}
