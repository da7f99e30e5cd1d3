package policy

import (
	"slices"
	"strconv"
	"strings"
)

// glob matches text against a pattern in which * stands for any run of characters and ? for one.
func glob(pattern, text string) bool {
	for pattern != "" {
		switch pattern[0] {
		case '*':
			rest := strings.TrimLeft(pattern, "*")
			for i := 0; i <= len(text); i++ {
				if glob(rest, text[i:]) {
					return true
				}
			}
			return false
		case '?':
			if text == "" {
				return false
			}
		default:
			if text == "" || text[0] != pattern[0] {
				return false
			}
		}
		pattern, text = pattern[1:], text[1:]
	}
	return text == ""
}

// matchLayer matches a layer path, or one of the layers that it lies in, against a pattern. * also
// runs over dots, so that layers.*.router finds layers.3.moe.router.
func matchLayer(pattern, layer string) bool {
	if pattern == "" || glob(pattern, layer) {
		return true
	}
	for i := range layer {
		if layer[i] == '.' && glob(pattern, layer[:i]) {
			return true
		}
	}
	return false
}

func isIndex(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= 0 && strconv.Itoa(n) == s
}

// element finds the element of a list of layers that a path lies in: "layers.3.mlp" lies in element 3
// of the list "layers", "stages.0.1.conv" in element 1 of "stages.0". pattern, where it names an index
// itself, as in layers.3.experts.*, means a list below that.
func element(pattern, layer string) (list string, index int, ok bool) {
	path := strings.Split(layer, ".")
	plain, _, _ := strings.Cut(strings.Split(pattern, "*")[0], "?")
	for i := 1; i < len(path); i++ {
		if !isIndex(path[i]) || i+1 < len(path) && isIndex(path[i+1]) {
			continue
		}
		if at := strings.Join(path[:i+1], "."); plain == at || strings.HasPrefix(plain, at+".") {
			continue // the pattern says which element
		}
		n, _ := strconv.Atoi(path[i])
		return strings.Join(path[:i], "."), n, true
	}
	return "", 0, false
}

// distance is Levenshtein's: insertions, deletions and substitutions, transpositions of neighbours
// counting once.
func distance(a, b string) int {
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}

// nearest lists up to n of the words that are nearly what was written, nearest first.
func nearest(want string, words []string, n int) []string {
	type scored struct {
		word string
		d    int
	}
	var list []scored
	for _, w := range words {
		if slices.ContainsFunc(list, func(s scored) bool { return s.word == w }) {
			continue
		}
		d := distance(strings.ToLower(want), strings.ToLower(w))
		if len(want) >= 3 && strings.Contains(w, want) {
			d = min(d, 1)
		}
		if d <= max(1, min(len(want), len(w))/3) {
			list = append(list, scored{w, d})
		}
	}
	slices.SortStableFunc(list, func(a, b scored) int {
		if a.d != b.d {
			return a.d - b.d
		}
		return strings.Compare(a.word, b.word)
	})
	var out []string
	for _, s := range list[:min(n, len(list))] {
		out = append(out, s.word)
	}
	return out
}
