"""What S3 providers want of a client, as far as rclone does not know it from the provider's name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Provider:
    """One provider: the name rclone has for it, its endpoint, and what is particular.

    `{account}` and `{region}` in the endpoint are filled in. `source` is where it is written down.
    """

    name: str
    rclone: str
    endpoint: str | None
    region: str | None
    options: tuple[tuple[str, str], ...]
    note: str
    source: str


_RCLONE = "https://rclone.org/s3/"
# Servers of whose trailing checksums nothing is known get none: they answer "trailing checksum is not supported".
_NO_TRAILERS = ("use_data_integrity_protections", "false")
PROVIDERS: dict[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider("aws", "AWS", None, "us-east-1", (), "SSE-KMS and SSE-C hide the MD5: verified by download", _RCLONE),
        Provider(
            "r2",
            "Cloudflare",
            "https://{account}.r2.cloudflarestorage.com",
            "auto",
            (),
            "all parts but the last must have one size; ETags of multipart objects are those of S3 since June 2023",
            "https://developers.cloudflare.com/r2/objects/multipart-objects",
        ),
        Provider(
            "b2",
            "Other",
            "https://s3.{region}.backblazeb2.com",
            "us-west-004",
            (_NO_TRAILERS,),
            "the S3 interface of Backblaze; deleted files stay as hidden versions until a lifecycle rule removes them",
            "https://rclone.org/b2/",
        ),
        Provider(
            "minio",
            "Minio",
            "http://127.0.0.1:9000",
            "us-east-1",
            (("force_path_style", "true"),),
            "path style",
            _RCLONE,
        ),
        Provider(
            "yandex",
            "Other",
            "https://storage.yandexcloud.net",
            "ru-central1",
            (_NO_TRAILERS,),
            "keys are the static keys of a service account",
            "https://yandex.cloud/en/docs/storage/tools/rclone",
        ),
        Provider(
            "vk",
            "Other",
            "https://hb.{region}.vkcs.cloud",
            "ru-msk",
            (_NO_TRAILERS,),
            "region and endpoint must belong together (ru-msk, kz-ast)",
            "https://cloud.vk.com/docs/storage/s3",
        ),
        Provider(
            "selectel",
            "Selectel",
            "https://s3.{region}.storage.selcloud.ru",
            "ru-1",
            (),
            "the region is the pool of the bucket: ru-1, ru-3, ru-7, gis-1, kz-1, uz-2",
            _RCLONE,
        ),
        Provider("ceph", "Ceph", None, None, (("force_path_style", "true"),), "path style; give the endpoint", _RCLONE),
        Provider("other", "Other", None, None, (_NO_TRAILERS,), "any other S3 server; give the endpoint", _RCLONE),
    )
}
