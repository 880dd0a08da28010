{{- define "sluice.name" -}}
{{ .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{/* The name of a Service begins with a letter and has no dot; that of a release may begin with a digit and have dots. */}}
{{- define "sluice.fullname" -}}
{{- $name := include "sluice.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- if .Values.fullnameOverride -}}
{{- $full = .Values.fullnameOverride -}}
{{- else if regexMatch "^[0-9]" $full -}}
{{- $full = printf "%s-%s" .Chart.Name $full -}}
{{- end -}}
{{ $full | replace "." "-" | trunc 40 | trimAll "-" }}
{{- end }}

{{/*
Names of cluster-scoped objects: two releases of one name in two namespaces must not share them. Neither part has a dot,
so that `a` and `b-c` are not `a-b` and `c`.
*/}}
{{- define "sluice.clusterName" -}}
{{ printf "%s.%s" .Release.Namespace (include "sluice.fullname" .) }}
{{- end }}

{{/* Of the Deployment and the Lease of a shard, which is `index`: with one shard there is no number. */}}
{{- define "sluice.shardName" -}}
{{- $name := include "sluice.fullname" .root -}}
{{- ternary $name (printf "%s-%d" $name (int .index)) (eq (int .root.Values.shards) 1) -}}
{{- end }}

{{/* The labels by which a Deployment selects its pods: with several shards, also that of the shard. */}}
{{- define "sluice.shardLabels" -}}
{{ include "sluice.selectorLabels" .root }}
{{- if gt (int .root.Values.shards) 1 }}
sluice.dev/shard: {{ .index | quote }}
{{- end }}
{{- end }}

{{- define "sluice.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (include "sluice.fullname" .) }}
{{- end }}

{{/*
Names of the grants of which a cluster, or a namespace, has one. They do not follow the release: Helm refuses to install
an object that another release owns, and so a namespace has one operator.
*/}}
{{- define "sluice.grant" -}}sluice-operator{{- end }}

{{- define "sluice.selectorLabels" -}}
app.kubernetes.io/name: {{ include "sluice.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end }}

{{/* Those of the pods of the NIC exporter: the Service and the Deployment of the operator must not select them. */}}
{{- define "sluice.nicExporterLabels" -}}
app.kubernetes.io/name: {{ printf "%s-nic" (include "sluice.name" .) | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* The labels of an object, with those that a value adds or replaces. */}}
{{- define "sluice.labelsWith" -}}
{{ toYaml (merge (deepCopy (.added | default dict)) (include "sluice.labels" .root | fromYaml)) }}
{{- end }}

{{- define "sluice.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ printf "%s@%s" .repository .digest }}
{{- else -}}
{{ printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The memory that `make bench-operator` measures at most is 307 MiB, 364 MiB and 484 MiB for the three sizes. */}}
{{- define "sluice.resources" -}}
{{- if .Values.resources -}}
{{ toYaml .Values.resources }}
{{- else -}}
{{- $size := get (dict
  "Small" (dict "cpu" "250m" "request" "320Mi" "limit" "512Mi")
  "Medium" (dict "cpu" "500m" "request" "448Mi" "limit" "768Mi")
  "Large" (dict "cpu" "1" "request" "640Mi" "limit" "1Gi")) .Values.fleetSize -}}
requests:
  cpu: {{ $size.cpu | quote }}
  memory: {{ $size.request }}
limits:
  memory: {{ $size.limit }}
{{- end -}}
{{- end }}

{{/* Whether the operator writes the status of ComputePools; empty is no. */}}
{{- define "sluice.writesPools" -}}
{{- if or (eq .Values.operator.poolStatus "Always") (and (eq .Values.operator.poolStatus "Auto") (not .Values.watchNamespaces)) -}}
true
{{- end -}}
{{- end }}

{{/*
The rules of the ClusterRole in files/rbac.yaml for kinds of one scope: Cluster, Namespaced or All. An operator of some
namespaces writes the status of ComputePools and ComputeBudgets only if it is told to.
*/}}
{{- define "sluice.rules" -}}
{{- $root := .root -}}
{{- $scope := .scope -}}
{{- range splitList "\n---\n" ($root.Files.Get "files/rbac.yaml") -}}
{{- $document := fromYaml . -}}
{{- if eq $document.kind "ClusterRole" -}}
{{- range $rule := $document.rules -}}
{{- $resources := list -}}
{{- range $resource := $rule.resources -}}
{{- $own := ternary "Cluster" "Namespaced" (has $resource (list "nodes" "namespaces" "computepools" "computepools/status" "computebudgets" "computebudgets/status" "nodepools" "nodeclaims" "leases")) -}}
{{- $written := or (not (has $resource (list "computepools/status" "computebudgets/status"))) (include "sluice.writesPools" $root) -}}
{{- if and (has $scope (list "All" $own)) $written -}}
{{- $resources = append $resources $resource -}}
{{- end -}}
{{- end -}}
{{- if $resources }}
- apiGroups: {{ toJson $rule.apiGroups }}
  resources: {{ toJson $resources }}
  verbs: {{ toJson $rule.verbs }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $root.Values.rbac.batching (has $scope (list "All" "Namespaced")) }}
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, patch]
{{- end -}}
{{- end }}

{{/* Whether an object belongs to this release; empty is no. */}}
{{- define "sluice.owns" -}}
{{- $annotations := .object.metadata.annotations | default dict -}}
{{- if and (eq (get $annotations "meta.helm.sh/release-name") .root.Release.Name) (eq (get $annotations "meta.helm.sh/release-namespace") .root.Release.Namespace) -}}
true
{{- end -}}
{{- end }}

{{/* The files that authenticate the operator to Prometheus, as sources of a projected volume. */}}
{{- define "sluice.prometheusFiles" -}}
{{- with .Values.prometheus.auth.bearerToken }}
{{- if .secretName }}
- secret: {name: {{ .secretName | quote }}, items: [{key: {{ .key | quote }}, path: token}]}
{{- end }}
{{- end }}
{{- with .Values.prometheus.auth.basic }}
{{- if .secretName }}
- secret: {name: {{ .secretName | quote }}, items: [{key: {{ .key | quote }}, path: password}]}
{{- end }}
{{- end }}
{{- with .Values.prometheus.tls }}
{{- if .caConfigMapName }}
- configMap: {name: {{ .caConfigMapName | quote }}, items: [{key: {{ .caKey | quote }}, path: ca.crt}]}
{{- end }}
{{- if .clientSecretName }}
- secret: {name: {{ .clientSecretName | quote }}, items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]}
{{- end }}
{{- end }}
{{- end }}

{{/* The settings of the operator by environment variable; an empty one is not set. */}}
{{- define "sluice.settings" -}}
{{- $folder := "/etc/sluice/prometheus" -}}
{{- $auth := .Values.prometheus.auth -}}
{{- $tls := .Values.prometheus.tls -}}
{{- $token := ternary "/var/run/secrets/kubernetes.io/serviceaccount/token" (ternary "" (printf "%s/token" $folder) (empty $auth.bearerToken.secretName)) $auth.bearerToken.serviceAccount -}}
{{- $headers := list -}}
{{- range $name, $value := .Values.prometheus.headers -}}
{{- $headers = append $headers (printf "%s=%s" $name $value) -}}
{{- end -}}
{{- $priorities := list (.Values.tenants.maxPriority | int64 | toString) -}}
{{- range $namespace, $limit := .Values.tenants.maxPriorities -}}
{{- $priorities = append $priorities (printf "%s=%d" $namespace (int64 $limit)) -}}
{{- end -}}
{{- $matches := list -}}
{{- range $name, $value := .Values.prometheus.labels.match -}}
{{- $matches = append $matches (printf "%s=%s" $name $value) -}}
{{- end -}}
{{- $choice := dict "Auto" "" "Always" "true" "Never" "false" -}}
{{- $usesPrometheus := has "prometheus" .Values.operator.metrics -}}
SLUICE_PORT: {{ .Values.service.port | quote }}
SLUICE_NAMESPACES: {{ join "," .Values.watchNamespaces | quote }}
SLUICE_LEADER_ELECT: {{ .Values.leaderElection.enabled | quote }}
SLUICE_LEASE_NAME: {{ include "sluice.fullname" . | quote }}
SLUICE_SHARD_LABEL: {{ .Values.shardLabel | quote }}
SLUICE_LEASE_NAMESPACE: {{ .Release.Namespace | quote }}
SLUICE_LEASE_DURATION: {{ .Values.leaderElection.leaseDuration | quote }}
SLUICE_METRICS: {{ join "," .Values.operator.metrics | quote }}
SLUICE_INTERVAL: {{ .Values.operator.interval | quote }}
SLUICE_SCRAPE_INTERVAL: {{ .Values.operator.scrapeInterval | quote }}
SLUICE_PRESETS_DIRECTORY: {{ ternary "" "/etc/sluice/presets" (empty .Values.operator.presetsConfigMapName) | quote }}
SLUICE_NAMESPACE_LABEL: {{ .Values.prometheus.labels.namespace | quote }}
SLUICE_POD_LABEL: {{ .Values.prometheus.labels.pod | quote }}
SLUICE_MATCH_LABELS: {{ join "," $matches | quote }}
SLUICE_AWS_REGION: {{ .Values.aws.region | quote }}
SLUICE_AWS_ROLE: {{ .Values.aws.role | quote }}
SLUICE_CLOUDWATCH_NAMESPACE: {{ .Values.aws.cloudwatch.namespace | quote }}
SLUICE_CLOUDWATCH_DIMENSIONS: {{ join "," .Values.aws.cloudwatch.dimensions | quote }}
SLUICE_FLEET_BUDGET: {{ .Values.operator.fleetBudget | quote }}
SLUICE_RAY_HOSTS: {{ join "," .Values.operator.rayHosts | quote }}
SLUICE_COMPOSITION: {{ .Values.operator.composition | quote }}
SLUICE_DECISION_TIME: {{ .Values.operator.decisionTime | quote }}
SLUICE_SCRAPE_ENDPOINTS: {{ join "," .Values.operator.scrapeEndpoints | quote }}
SLUICE_POOL_STATUS: {{ get $choice .Values.operator.poolStatus | quote }}
SLUICE_KEDA_ADDRESS: {{ ternary (printf "[::]:%d" (int64 .Values.keda.port)) "" .Values.keda.enabled | quote }}
{{- $certificate := and .Values.keda.enabled .Values.keda.tlsSecretName }}
SLUICE_KEDA_CERTIFICATE_FILE: {{ ternary "/etc/sluice/keda/tls.crt" "" (not (empty $certificate)) | quote }}
SLUICE_KEDA_KEY_FILE: {{ ternary "/etc/sluice/keda/tls.key" "" (not (empty $certificate)) | quote }}
SLUICE_LOG_FORMAT: {{ .Values.operator.logFormat | quote }}
SLUICE_RESTRICT_QUERIES: {{ get $choice .Values.tenants.restrictQueries | quote }}
SLUICE_MAX_PRIORITY: {{ join "," $priorities | quote }}
{{- if $usesPrometheus }}
SLUICE_PROMETHEUS_URL: {{ .Values.prometheus.url | quote }}
SLUICE_PROMETHEUS_HEADERS: {{ join "," $headers | quote }}
SLUICE_PROMETHEUS_TOKEN_FILE: {{ $token | quote }}
SLUICE_PROMETHEUS_USERNAME: {{ $auth.basic.username | quote }}
SLUICE_PROMETHEUS_PASSWORD_FILE: {{ ternary "" (printf "%s/password" $folder) (empty $auth.basic.secretName) | quote }}
SLUICE_PROMETHEUS_CA_FILE: {{ ternary "" (printf "%s/ca.crt" $folder) (empty $tls.caConfigMapName) | quote }}
SLUICE_PROMETHEUS_CERTIFICATE_FILE: {{ ternary "" (printf "%s/tls.crt" $folder) (empty $tls.clientSecretName) | quote }}
SLUICE_PROMETHEUS_KEY_FILE: {{ ternary "" (printf "%s/tls.key" $folder) (empty $tls.clientSecretName) | quote }}
SLUICE_PROMETHEUS_SIGV4_REGION: {{ $auth.sigv4.region | quote }}
SLUICE_PROMETHEUS_SIGV4_SERVICE: {{ ternary "" $auth.sigv4.service (empty $auth.sigv4.region) | quote }}
{{- end }}
{{- end }}
