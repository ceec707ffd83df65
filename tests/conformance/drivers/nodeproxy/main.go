// The program that stands between upstream's node suite and a kube-lite server. The suite expects
// the kubelet's read-only port, which kube-lite does not have, and reads its number in the
// kubelet's configuration through the API server. This program serves the API without TLS, with the
// number of its read-only port in that configuration, and the read-only port, whose requests get a
// token on their way to the kubelet.
package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"flag"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
)

var (
	api      = flag.String("api", "https://127.0.0.1:6443", "URL of the API server")
	kubelet  = flag.String("kubelet", "https://127.0.0.1:10250", "URL of the kubelet")
	token    = flag.String("token", "", "token of an administrator")
	listen   = flag.String("listen", "127.0.0.1:8080", "address that serves the API")
	readOnly = flag.Int("read-only-port", 10255, "port that serves the kubelet")
)

func main() {
	flag.Parse()
	go func() { log.Fatal(http.ListenAndServe(*listen, forward(*api, false))) }()
	log.Fatal(http.ListenAndServe(":"+strconv.Itoa(*readOnly), forward(*kubelet, true)))
}

// forward returns a proxy to a server whose certificate is not checked; the token is added to
// requests if `authenticate` is set.
func forward(server string, authenticate bool) http.Handler {
	target, err := url.Parse(server)
	if err != nil {
		log.Fatal(err)
	}
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			if authenticate {
				r.Out.Header.Set("Authorization", "Bearer "+*token)
			}
			if strings.HasSuffix(r.In.URL.Path, "/configz") {
				r.Out.Header.Del("Accept-Encoding")
			}
		},
		// Streams of exec and attach need HTTP/1.1.
		Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{InsecureSkipVerify: true},
			TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
			DisableCompression:  true,
			MaxIdleConnsPerHost: 100,
		},
		FlushInterval:  -1,
		ModifyResponse: announcePort,
	}
}

// announcePort writes the read-only port into the kubelet's configuration.
func announcePort(response *http.Response) error {
	if !strings.HasSuffix(response.Request.URL.Path, "/configz") || response.StatusCode != 200 {
		return nil
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	var configz map[string]map[string]any
	if err := json.Unmarshal(body, &configz); err != nil {
		return err
	}
	configz["kubeletconfig"]["readOnlyPort"] = *readOnly
	if body, err = json.Marshal(configz); err != nil {
		return err
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	response.ContentLength = int64(len(body))
	response.Header.Set("Content-Length", strconv.Itoa(len(body)))
	return nil
}
